"""Decisions between siblings are judged by the outcomes behind their labels, whatever those were scaled by."""

import pytest

from qguide.qnet.types import Message
from qguide.training.algorithms.backups import label_tree
from qguide.training.data.siblings import sibling_choices
from tests.support.labels import labelled

TASK, RED, BLUE, AGAIN = (
    Message("user", "Say red."),
    Message("assistant", "Action: red"),
    Message("assistant", "Action: blue"),
    Message("user", "Once more."),
)
SLOW, FAST, BAD = (TASK, BLUE, AGAIN, RED), (TASK, RED), (TASK, BLUE, AGAIN, BLUE)
"""A slow success and a failure share their first action."""


@pytest.mark.parametrize(
    ("target", "own", "expected"),
    [
        ("q", {1: 0.9, 2: 1.0, 3: 1.0, 4: 0.0}, (1.0, 1.0)),
        ("td", {1: 0.45, 2: 0.9, 3: 1.0, 4: 0.0}, (0.5, 1.0)),
        ("progress", {1: -0.2, 2: 0.5, 3: 0.3, 4: -0.5}, (0.5, 1.0)),
        ("my_labels:of_tree", {1: 7.0, 2: 0.0, 3: 3.0, 4: 0.0}, (7.0, 3.0)),
    ],
)
def test_the_first_decision_is_judged_by_what_was_earned_after_it(
    target: str, own: dict[int, float], expected: tuple[float, float]
) -> None:
    tree = labelled(SLOW, FAST, BAD, labels=own, target=target, rewards=(1.0, 1.0, 0.0))
    first = next(one.choice for one in sibling_choices(tree, [(node, node) for node in own]) if 3 in one.places)
    assert first.values == expected
    assert first.draws == (2, 1)


def test_a_tree_that_always_fails_a_little_is_not_scaled_to_a_success() -> None:
    unlabelled = labelled((TASK, RED), (TASK, BLUE), labels={}, rewards=(0.25, 0.0)).tree
    own = label_tree(unlabelled, target="q", gamma=0.9, normalized=True)
    assert own == {1: 1.0, 2: 0.0}
    tree = labelled((TASK, RED), (TASK, BLUE), labels=own, rewards=(0.25, 0.0))
    [one] = sibling_choices(tree, [(1, 1), (2, 2)])
    assert one.choice.values == (0.25, 0.0)
