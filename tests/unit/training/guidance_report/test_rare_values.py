"""Argument values that few episodes tried, and what came of them."""

from pathlib import Path

from qguide.qnet.records import OfferRow
from qguide.training.guidance_report.build import build_report
from qguide.training.guidance_report.schema import RareValue
from tests.support.offers import offer, write_offers


def rare(folder: Path, rows: list[OfferRow]) -> dict[str, RareValue]:
    write_offers(folder, rows)
    return {one.value: one for one in build_report([folder]).rare_values}


def asked(who: str, number: int, outcome: float, *others: str) -> OfferRow:
    actions = [f'Action: give({{"to": "{name}"}})' for name in (who, *others)]
    return offer(
        task=f"t{number}",
        episode=f"{who}{number}",
        outcome=outcome,
        candidates=[{"content": action, "q_value": 0.5, "count": 1} for action in actions],
        chosen=0,
        taken=actions[0],
    ).model_copy(update={"chosen": actions[0]})


def test_a_value_that_was_rarely_tried_has_its_successes(tmp_path: Path) -> None:
    often = [asked("Anna", n, 1.0) for n in range(12)]
    seldom = [asked("Dora", n, float(n < 3)) for n in range(7)]

    found = rare(tmp_path, [*often, *seldom])

    assert set(found) == {"Dora"}
    assert (found["Dora"].successes, found["Dora"].episodes) == (3, 7)
    assert (found["Dora"].tool, found["Dora"].argument) == ("give", "to")


def test_a_value_that_was_only_offered_is_the_first(tmp_path: Path) -> None:
    rows = [asked("Anna", n, 1.0, "Emil") for n in range(4)]

    found = rare(tmp_path, rows)

    assert [*found] == ["Emil", "Anna"]
    assert (found["Emil"].episodes, found["Emil"].offered) == (0, 4)


def test_words_of_an_action_are_its_values(tmp_path: Path) -> None:
    rows = [offer(task=f"t{n}", episode=f"{n}", taken=f"Thought: hm\nAction: go to room {n % 2}") for n in range(4)]

    found = rare(tmp_path, rows)

    assert (found["0"].tool, found["0"].argument, found["0"].episodes) == ("go", "", 2)


def test_an_answer_in_words_and_an_argument_of_free_text_are_left_out(tmp_path: Path) -> None:
    words = [offer(task=f"w{n}", episode=f"w{n}", taken="I think so.") for n in range(3)]
    free = [asked(f"person {n}", n, 1.0) for n in range(120)]

    assert rare(tmp_path, [*words, *free]) == {}
