from pathlib import Path

import pytest

from qguide.qnet.errors import CheckpointError
from qguide.qnet.features.domain import DOMAIN, Domain
from qguide.qnet.types import History, Message
from qguide.training.licence.domain import fit_domain

SYSTEM = Message("system", "You run errands in a house. Use the tools.")
THINGS = ("milk", "butter", "spoon", "vase", "atlas", "juice")


def errand(thing: str, steps: int = 0) -> History:
    moves = (Message("assistant", "Action: open fridge"), Message("user", f"No {thing} here."))
    return (SYSTEM, Message("user", f"Bring the {thing} to Ana."), *moves * steps)


def states() -> list[tuple[str, History]]:
    return [(thing, errand(thing, steps)) for thing in THINGS for steps in range(4)]


def test_a_new_task_of_the_same_kind_is_inside() -> None:
    domain = fit_domain(states())

    assert not domain.distance(errand("scissors", 2)).outside


@pytest.mark.parametrize(
    "history",
    [
        (Message("user", "Plan a weekend in Lisbon."),),
        (Message("user", "Your task is to: heat some apple and put it in garbagecan."),),
        (),
    ],
)
def test_another_kind_of_task_is_outside_with_the_distance_in_words(history: History) -> None:
    distance = fit_domain(states()).distance(history)

    assert distance.outside
    assert f"distance {distance.value:.2g}, limit 1" in distance.reason


def test_another_system_prompt_is_outside() -> None:
    rewritten = (Message("system", "Answer in French verse."), *errand("milk")[1:])

    assert fit_domain(states()).distance(rewritten).outside


def test_the_agents_own_words_do_not_count() -> None:
    domain = fit_domain(states())
    said = (*errand("milk"), Message("assistant", "Perhaps somewhere entirely unheard of?"))

    assert domain.distance(said) == domain.distance(errand("milk"))


def test_a_saved_domain_is_the_same_and_holds_no_words(tmp_path: Path) -> None:
    domain = fit_domain(states(), salt="00ff")
    domain.save(tmp_path)

    assert Domain.load(tmp_path) == domain
    assert "milk" not in (tmp_path / DOMAIN).read_text()


def test_a_checkpoint_without_a_domain_has_none_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    assert Domain.load(tmp_path) is None

    (tmp_path / DOMAIN).write_text("{}")
    with pytest.raises(CheckpointError, match=r"domain\.json .*Domain\nunknown_limit\n"):
        Domain.load(tmp_path)


def test_a_single_task_still_has_a_domain() -> None:
    domain = fit_domain([state for state in states() if state[0] == "milk"])

    assert not domain.distance(errand("milk", 1)).outside
    assert domain.distance((Message("user", "Plan a weekend in Lisbon."),)).outside
