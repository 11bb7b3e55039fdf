"""A trained Q model is assessed by held-back decisions, as it will be served."""

from dataclasses import replace

import pytest

from qguide.training.algorithms.choice_quality import ScoredChoice
from qguide.training.licence.assessment import ScoredQModel, assess, licence_of_choice


def choices(*, right: int, n: int = 40) -> list[ScoredChoice]:
    """Decisions of two candidates that were drawn alike; Q prefers the better one in `right`."""
    return [
        ScoredChoice(
            (0.6, 0.5) if i % n < right else (0.5, 0.6),
            (1, 9),
            (True, True),
            draws=(1, 1),
            values=(1.0, 0.0),
            task=f"{i}",
        )
        for i in range(n)
    ]


def test_q_that_beats_the_draws_is_licensed_with_its_figures() -> None:
    licence = assess(choices(right=38)).licence

    assert licence is not None
    assert licence.granted
    assert (licence.decisions, licence.tasks) == (40, 40)
    assert licence.gain == pytest.approx(38 / 40 - 0.5)
    assert licence.choosers["oracle"].outcome == 1.0


def test_q_at_chance_has_no_licence() -> None:
    licence = assess(choices(right=20)).licence

    assert licence is not None
    assert not licence.granted
    assert "not shown to be above the agent's own" in licence.reason


def test_q_that_only_repeats_the_votes_has_no_licence() -> None:
    told = [replace(choice, draws=(4, 1)) for choice in choices(right=40)]
    licence = assess(told).licence

    assert licence is not None
    assert licence.gain == 0.0
    assert not licence.granted


def test_too_few_decisions_say_how_many_are_missing() -> None:
    assessed = assess(choices(right=4, n=4))

    assert assessed.prior is None
    assert assessed.licence is not None
    assert not assessed.licence.granted
    assert assessed.licence.missing_decisions == 6


def test_without_held_back_decisions_nothing_is_judged() -> None:
    assert assess([]).licence is None


def test_q_that_only_repeats_the_greedy_reply_has_no_licence() -> None:
    told = [replace(choice, greedy=0) for choice in choices(right=40)]
    licence = assess(told).licence

    assert licence is not None
    assert (licence.own, licence.gain) == ("greedy", 0.0)
    assert not licence.granted


def scored(right: int, *, tasks: int = 40) -> ScoredQModel:
    """A Q model that takes the better of two candidates, which were drawn alike, in so many tasks."""
    return ScoredQModel(choices(right=right, n=tasks), fits_prior=False)


def test_the_best_of_many_takes_a_clearer_gain_than_one_alone() -> None:
    clear, unclear = scored(37), scored(29)
    others = {f"noise {right}": scored(right) for right in (18, 19, 20, 21, 22, 23)}
    for one in (clear, unclear):
        alone = one.assess().licence
        assert alone is not None
        assert alone.granted
        assert licence_of_choice({"one": one}, "one") == alone
    best = licence_of_choice({**others, "clear": clear}, "clear")
    assert best.granted
    assert "wider for the best of 7) in outcome" in best.reason
    luckiest = licence_of_choice({**others, "unclear": unclear}, "unclear")
    assert not luckiest.granted
    assert luckiest.gain_interval[0] < 0 < luckiest.gain


def test_the_reason_tells_the_gain_of_what_other_tasks_choose() -> None:
    good = licence_of_choice({"good": scored(36), "noise": scored(20)}, "good")
    assert good.gain == pytest.approx(0.4)
    assert good.reason.endswith("; +0.400 where each half of the tasks judges what the other half chooses")
    lucky = licence_of_choice({f"{right}": scored(right) for right in range(15, 26)}, "25")
    assert lucky.gain == pytest.approx(0.125)
    assert "; +0.125 where" not in lucky.reason
