"""Decisions between siblings are judged by the outcomes behind their labels, whatever those were scaled by."""

from dataclasses import replace

import pytest

from qguide.qnet.types import Message
from qguide.training.algorithms.backups import BackedUpTarget, label_tree, labels_of_actions
from qguide.training.algorithms.tree import Tree, merge_trees
from qguide.training.data.records import LabelledTree
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


PULLED, PRESSED, GREEN, DARK = (
    Message("assistant", "Action: pull"),
    Message("assistant", "Action: press"),
    Message("user", "A green lamp."),
    Message("user", "It stays dark."),
)


TARGETS: tuple[BackedUpTarget, ...] = ("q", "avg")


def lucky_once_of_ten(*after: Message) -> Tree:
    """One action wins once of ten times, the other four of five, whatever is done after them."""
    ends = (((PULLED, GREEN), 1.0, 1), ((PULLED, DARK), 0.0, 9), ((PRESSED, GREEN), 1.0, 4), ((PRESSED, DARK), 0.0, 1))
    episodes = [
        labelled((TASK, *said, *after), labels={}, rewards=(reward,)).tree
        for said, reward, times in ends
        for _ in range(times)
    ]
    return merge_trees(episodes)


@pytest.mark.parametrize("after", [(), (RED,)])
def test_an_action_is_worth_what_it_brings_as_often_as_it_does(after: tuple[Message, ...]) -> None:
    tree = lucky_once_of_ten(*after)
    pulls, presses = ([n.id for n in tree.nodes if n.step.message == said] for said in (PULLED, PRESSED))
    for target in TARGETS:
        own = label_tree(tree, target=target, gamma=1.0, normalized=False)
        pooled = labels_of_actions(tree, own)
        assert [pooled[node] for node in pulls] == pytest.approx([0.1, 0.1])
        assert [pooled[node] for node in presses] == pytest.approx([0.8, 0.8])
        places = [(node, pulls[0] if node in pulls else presses[0]) for node in (*pulls, *presses)]
        [one] = sibling_choices(LabelledTree("t", replace(tree, values={target: own}), target), places)
        assert one.choice.values == pytest.approx((0.1, 0.8))
        assert one.choice.draws == (10, 5)


def test_the_state_before_a_gamble_is_worth_its_best_action_and_not_its_luck() -> None:
    gamble = lucky_once_of_ten()
    before = merge_trees(
        [
            labelled((TASK, BLUE, AGAIN, *tree.history(leaf.id)[1:]), labels={}, rewards=(leaf.step.reward,)).tree
            for tree in [gamble]
            for leaf in gamble.leaves()
            for _ in range(leaf.count)
        ]
    )
    assert label_tree(before, target="q", gamma=1.0, normalized=False)[1] == pytest.approx(0.8)
