"""Lacks of a licence, in words that name the remedy."""

from typing import Any

import pytest

from qguide.qnet.models.manifest import Licence, LicenceFigures
from qguide.server.learning.fitting import may_be_tried, missing_of


def licence(*, best: float = 0.9, **more: Any) -> Licence:
    """A refused licence of fifty decisions, at which the agent's own choices have .5."""

    def figures(outcome: float) -> LicenceFigures:
        return LicenceFigures(outcome=outcome, interval=(0.0, 1.0), regret=0.9 - outcome)

    choosers = {"votes": figures(0.5), "oracle": figures(best)}
    given = {"granted": False, "reason": "", "decisions": 50, "tasks": 30, "credit": -0.1} | more
    given = {"credit_tasks": 60} | given
    return Licence(choosers=choosers, own="votes", **given)


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (licence(credit_tasks=7), "too few episodes: 7 were held back, and a trial takes 20"),
        (licence(credit=0.0), "no signal: all outcomes are alike, or all actions"),
        (licence(decisions=4, best=0.51), "no signal: what it read in the episodes does not tell"),
        (licence(best=0.51), "no room: the best of the candidates is 0.010 in outcome above"),
        (licence(ceiling=0.5), "no signal: a Q model that knew all would have 50%"),
        (licence(missing_decisions=70), "about 70 more would show the gain"),
        (licence(), "no signal: what it read in the episodes does not tell"),
        (Licence(granted=False, reason=""), "too few episodes: 0 were held back"),
    ],
)
def test_each_lack_has_its_words(refused: Licence, said: str) -> None:
    assert said in missing_of(refused)


@pytest.mark.parametrize(("credit", "tasks", "tried"), [(0.1, 20, True), (0.1, 19, False), (-0.1, 90, False)])
def test_a_trial_takes_some_credit_and_no_lead_over_votes(credit: float, tasks: int, tried: bool) -> None:
    found = licence(credit=credit, credit_interval=(-0.3, 0.3), credit_tasks=tasks)
    assert may_be_tried(found) is tried
    assert (missing_of(found) == "") is tried


def test_a_granted_licence_lacks_nothing() -> None:
    assert missing_of(licence(granted=True, decisions=1)) == ""
