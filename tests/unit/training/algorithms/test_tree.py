"""Trees of actions: identity, order, histories."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest

from qguide.qnet.records import ROOT_ID
from qguide.qnet.types import Message, ToolCall
from qguide.training import trajectory
from qguide.training.algorithms.backups import average_outcome, labels_of_actions
from qguide.training.algorithms.tree import Tree, branching_fraction, find_child, merge_branch, merge_trees
from qguide.training.rollouts.episode import Episode
from qguide.training.trajectory import Step, action_key, text_reply


def branch(*letters: str, thought: str = "") -> list[Step]:
    return [Step(f"{thought}Action: {letter}", f"saw {letter}") for letter in letters]


def grown(*words: str) -> Tree:
    tree = Tree("start")
    for word in words:
        tree, _ = merge_branch(tree, branch(*word), source="policy")
    return tree


@pytest.mark.parametrize(
    ("reply", "key"),
    [
        ("Thought: a mug.\nAction: take mug 1", "take mug 1"),
        ("Thought: something else.\nAction: take mug 1", "take mug 1"),
        (" SELECT 1 ", "SELECT 1"),
    ],
)
def test_the_bare_action_is_what_makes_two_replies_the_same(reply: str, key: str) -> None:
    assert action_key(reply) == key


def test_a_shared_prefix_is_merged_and_the_rest_branches_off() -> None:
    tree = grown("abc", "abd")
    assert [node.step.action for node in tree.nodes] == [f"Action: {x}" for x in "abcd"]
    assert tree.children[2] == (3, 4)


def test_the_first_of_two_equal_actions_is_kept() -> None:
    tree, _ = merge_branch(grown("a"), branch("a", "b", thought="Hm. "), source="expert")
    assert [(node.step.action, node.source) for node in tree.nodes] == [
        ("Action: a", "policy"),
        ("Hm. Action: b", "expert"),
    ]


def test_actions_are_compared_only_where_observations_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Counter[str]()
    monkeypatch.setattr(trajectory, "message_key", lambda reply: read.update([reply.text]) or reply.text)
    tree = grown("a")
    for number in range(50):
        tree, _ = merge_branch(tree, [Step("b", f"seen {number}")], source="policy")
    assert len(tree.children[ROOT_ID]) == 51
    assert read["b"] == 50


def test_a_branch_may_begin_inside_the_tree() -> None:
    tree, ids = merge_branch(grown("ab"), branch("x", "y"), at=1, source="policy")
    assert ids == (3, 4)
    assert [node.depth for node in tree.path(4)] == [1, 2, 3]


def test_merging_leaves_the_old_tree_as_it_was() -> None:
    before = grown("ab")
    merge_branch(before, branch("c"), source="policy")
    assert before == grown("ab")


def test_the_history_of_a_node_is_the_chat_that_leads_there() -> None:
    tree = grown("ab", "ac")
    assert tree.history(ROOT_ID) == (Message("user", "start"),)
    assert tree.history(3) == (
        Message("user", "start"),
        Message("assistant", "Action: a"),
        Message("user", "saw a"),
        Message("assistant", "Action: c"),
        Message("user", "saw c"),
    )


def test_children_are_found_by_what_they_do() -> None:
    tree = grown("ab", "ac")
    assert find_child(tree, 1, text_reply("Thought: or this\nAction: c")) == 3
    assert find_child(tree, 1, text_reply("Action: d")) is None


def test_leaves_come_in_the_order_of_a_walk() -> None:
    assert [leaf.id for leaf in grown("ab", "c", "ad").leaves()] == [2, 4, 3]


def test_a_chain_does_not_branch() -> None:
    assert branching_fraction(grown("abc")) == 0.0
    assert branching_fraction(Tree("start")) == 0.0
    assert branching_fraction(grown("ab", "ac")) == 0.5


def test_nodes_too_deep_to_be_expanded_may_be_left_out() -> None:
    tree = grown("abcd", "e")
    assert branching_fraction(tree) == 0.25
    assert branching_fraction(tree, depth=0) == 1.0


def test_what_is_imitated_in_one_branch_is_imitated() -> None:
    erred, _ = merge_branch(Tree("start"), branch("a", "b"), source="expert", mistakes=(0, 1))
    assert [node.mistake for node in erred.nodes] == [True, True]
    again, _ = merge_branch(erred, branch("a", "c"), source="expert", mistakes=(1,))
    assert [node.mistake for node in again.nodes] == [False, True, True]
    assert [node.mistake for node in merge_trees([erred, erred]).nodes] == [True, True]
    assert [node.mistake for node in merge_trees([erred, grown("a")]).nodes] == [False, True]


def test_explorations_of_one_task_become_one_tree() -> None:
    merged = merge_trees([grown("ab", "ac"), grown("ac", "ad", "e")])
    assert [(node.step.action[-1], node.parent, node.count) for node in merged.nodes] == [
        ("a", 0, 1),
        ("b", 1, 1),
        ("c", 1, 2),
        ("d", 1, 1),
        ("e", 0, 1),
    ]


def ended(word: str, reward: float) -> Tree:
    *before, last = branch(*word)
    return merge_branch(Tree("start"), [*before, replace(last, reward=reward)], source="policy")[0]


def test_a_leaf_counts_its_episodes_and_has_their_mean_reward() -> None:
    merged = merge_trees([ended("ab", 1.0), ended("ab", 0.0), ended("ab", 0.0), ended("ac", 1.0)])
    assert [(leaf.count, leaf.step.reward) for leaf in merged.leaves()] == [(3, pytest.approx(1 / 3)), (1, 1.0)]


@pytest.mark.parametrize("words", [("ab", "abc"), ("abc", "ab")])
def test_an_episode_that_another_one_continues_has_no_outcome(words: tuple[str, str]) -> None:
    merged = merge_trees([ended(words[0], 1.0), ended(words[0], 1.0), ended(words[1], 1.0)])
    assert [node.step.reward for node in merged.nodes] == [0.0, 0.0, 1.0]
    assert [node.count for node in merged.nodes][:2] == [1, 1]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_action_keeps_its_own_reward_where_another_episode_goes_on(order: tuple[int, int]) -> None:
    first, second = (replace(step, reward=reward) for step, reward in zip(branch("a", "b"), (0.25, 1.0), strict=True))
    trees = [merge_branch(Tree("start"), steps, source="policy")[0] for steps in ([first], [first, second])]
    merged = merge_trees([trees[i] for i in order])
    assert [node.step.reward for node in merged.nodes] == [0.25, 1.0]


EMPTY = Step("Action: a", "", observed=(Message("tool", ""),))
DENIED = Step("Action: a", "denied", observed=(Message("tool", "denied"),))
UNOBSERVED = Step("Action: a", "")


@pytest.mark.parametrize("steps", [(EMPTY, DENIED), (DENIED, EMPTY)])
def test_an_empty_observation_is_another_state_than_a_text(steps: tuple[Step, Step]) -> None:
    tree = Tree("start")
    for step in steps:
        tree, _ = merge_branch(tree, [step, *branch("b")], source="policy")
    assert tree.children[ROOT_ID] == (1, 3)
    assert tuple(tree.node(node_id).step for node_id in (1, 3)) == steps


@pytest.mark.parametrize("seen", [EMPTY, DENIED])
def test_an_observation_that_was_not_recorded_is_filled_in(seen: Step) -> None:
    for steps in ((UNOBSERVED, seen), (seen, UNOBSERVED)):
        tree = Tree("start")
        for step in steps:
            tree, _ = merge_branch(tree, [step], source="policy")
        assert [node.step for node in tree.nodes] == [seen]


def test_an_observation_is_filled_in_with_the_calls_that_it_answers() -> None:
    first, second = (Message("assistant", "", (ToolCall("look", "{}", f"call_{n}"),)) for n in (1, 2))
    unseen = Step(first.text, "", reply=first)
    seen = Step.of_messages(second, (Message("tool", "a mug", tool_call_id="call_2"),))
    tree = Tree("start")
    for step in (unseen, seen):
        tree, _ = merge_branch(tree, [step], source="policy")
    assert [node.step for node in tree.nodes] == [seen]


def chain(*steps: Step) -> Tree:
    return merge_branch(Tree("start"), steps, source="policy")[0]


SILENT = replace(UNOBSERVED, reward=1.0, terminated=True)
ANSWERED = Step("Action: a", "")
ON = (DENIED, Step("Action: b", "lost", reward=0.0, terminated=True))


@pytest.mark.parametrize("order", list(permutations(range(4))))
@pytest.mark.parametrize("answer", [DENIED, ANSWERED], ids=["a text", "an empty answer"])
@pytest.mark.parametrize("end", [SILENT, replace(DENIED, reward=1.0, terminated=True)], ids=["silent", "observed"])
def test_an_end_that_is_stated_counts_beside_what_went_on(order: Sequence[int], answer: Step, end: Step) -> None:
    """Two of three episodes end with the action and succeed, the third goes on and fails; a fourth was cut short."""
    cut = replace(UNOBSERVED, reward=0.7, terminated=None)
    episodes = [chain(end), chain(end), chain(answer, ON[1]), chain(cut)]
    merged = merge_trees([episodes[i] for i in order])
    assert sorted((n.step.terminated, n.step.reward, n.count) for n in merged.nodes if n.parent == ROOT_ID) == [
        (False, 0.0, 1),
        (True, 1.0, 2),
    ]
    values = labels_of_actions(merged, average_outcome(merged))
    assert [values[n.id] for n in merged.nodes if n.parent == ROOT_ID] == pytest.approx([2 / 3, 2 / 3])


@pytest.mark.parametrize("terminated", [None, False])
@pytest.mark.parametrize("order", [1, -1])
def test_an_end_that_is_not_stated_was_cut_short(order: int, terminated: bool | None) -> None:
    cut = chain(replace(SILENT, terminated=terminated))
    merged = merge_trees([chain(*ON), cut][::order])
    assert [(node.step.reward, node.step.terminated) for node in merged.nodes] == [(0.0, False), (0.0, True)]
    assert [node.step for node in merge_trees([cut, chain(SILENT)][::order]).nodes] == [SILENT]


def test_episodes_that_were_cut_short_alike_have_their_mean() -> None:
    cut = [chain(replace(UNOBSERVED, reward=reward, terminated=None)) for reward in (1.0, 0.0, 0.5)]
    assert [(node.step.reward, node.count) for node in merge_trees(cut).nodes] == [(0.5, 3)]


@pytest.mark.parametrize("terminated", [True, None, False])
def test_an_end_of_which_nothing_is_stated_is_an_end_to_all_but_merges(terminated: bool | None) -> None:
    last = Step("Action: a", "seen", terminated=terminated)
    assert last.ended == Episode("start", (last,), (), 0).terminated == (terminated is not False)
