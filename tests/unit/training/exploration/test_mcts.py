"""Monte Carlo tree search on small worlds: a search worked out by hand, a bandit, and limits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.errors import HistoryTooLongError
from qguide.qnet.records import ROOT_ID
from qguide.qnet.types import Candidate, Message, SampleRequest
from qguide.training.algorithms.preferences import best_path_pairs
from qguide.training.algorithms.tree import Tree, merge_branch
from qguide.training.exploration.mcts import (
    ROLLOUT,
    Mcts,
    SearchedTree,
    SearchStatistics,
    back_up,
    search_task,
    select_child,
)
from qguide.training.rollouts.driver import run_together
from qguide.training.rollouts.episode import derived_seed
from qguide.training.rollouts.game import Game
from qguide.training.trajectory import Step, action_key
from tests.support.letter_world import LetterWorld, Rewards


@dataclass
class InOrder:
    """Draws the letters in order at an expansion, and "a" in a roll-out."""

    letters: str = "ab"
    context: int = 99
    name: str = "letters"
    requests: list[SampleRequest] = field(default_factory=list)

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        return [self._sample(request) for request in requests]

    def _sample(self, request: SampleRequest) -> list[Candidate]:
        if len(request.history) > self.context:
            raise HistoryTooLongError("the history is too long")
        self.requests.append(request)
        drawn = [self.letters[i % len(self.letters)] for i in range(request.n)]
        return [Candidate(Message("assistant", f"Thought: hm\nAction: {a}"), 2) for a in drawn]


def search(
    reward_of: Rewards, *, policy: InOrder | None = None, length: int = 3, ends: str = "", **options: Any
) -> SearchedTree:
    task = search_task(
        Game(lambda: LetterWorld(reward_of, length, ends), (0, "spell")), Mcts(**options), source="letters"
    )
    [searched] = run_together([task], policy=policy or InOrder())
    return searched


def word_of(searched: SearchedTree, node_id: int) -> str:
    return "".join(action_key(node.step.action) for node in searched.tree.path(node_id))


GOLDEN = {"aaa": 0.2, "baa": 0.6, "bba": 0.0, "bbb": 0.0, "aba": 1.0}.__getitem__


def by_word(searched: SearchedTree) -> dict[str, tuple[int, Any]]:
    """Visits and value of each visited node."""
    found = searched.statistics
    return {
        word_of(searched, node_id): (count, pytest.approx(found.values[node_id]))
        for node_id, count in found.visit_counts.items()
    }


def test_four_iterations_are_those_worked_out_by_hand() -> None:
    # 1: a is rolled out. 2: b was never visited. 3: UCT(b) = 0.6 + sqrt(2 ln 2) is above
    # UCT(a) = 0.2 + sqrt(2 ln 2); below b, bb was never visited. 4: UCT(a) = 0.2 + sqrt(2 ln 3)
    # = 1.68 is above UCT(b) = 0.3 + sqrt(ln 3) = 1.35; below a, ab was never visited, and wins.
    searched = search(GOLDEN, width=2, evaluate="one")
    assert searched.iterations == 4
    assert searched.outcomes == [0.2, 0.6, 0.0, 1.0]
    assert by_word(searched) == {
        "": (4, 0.45),
        "a": (2, 0.6),
        "b": (2, 0.3),
        "aa": (1, 0.2),
        "aaa": (1, 0.2),
        "ab": (1, 1.0),
        "aba": (1, 1.0),
        "ba": (1, 0.6),
        "baa": (1, 0.6),
        "bb": (1, 0.0),
        "bba": (1, 0.0),
    }
    words = {word_of(searched, node.id): node.source for node in searched.tree.nodes}
    assert {word for word, source in words.items() if source == ROLLOUT} == {"aa", "aaa", "aba", "baa"}
    assert "bbb" in words  # drawn and stepped, never visited


def test_all_children_of_an_expansion_are_evaluated_in_one_iteration() -> None:
    # 1: a and b are rolled out. 2: UCT(b) is above UCT(a), and of b's children bb is new. 3: UCT(a)
    # = 0.2 + sqrt(2 ln 3) = 1.68 is above UCT(b) = 0.3 + sqrt(ln 3) = 1.35; ab is new, and wins.
    searched = search(GOLDEN, width=2)
    assert searched.iterations == 3
    assert searched.outcomes == [0.2, 0.6, 0.0, 1.0]
    counts = {word: count for word, (count, _) in by_word(searched).items()}
    assert (counts[""], counts["a"], counts["b"]) == (4, 2, 2)


def test_a_child_that_ends_with_a_success_ends_the_search_before_any_roll_out() -> None:
    policy = InOrder("az")
    rewards = {"z": 1.0}.__getitem__
    searched = search(rewards, policy=policy, ends="z", width=2)
    assert searched.outcomes == [1.0]
    assert [request.n for request in policy.requests] == [2]


def test_children_that_end_are_valued_beside_the_one_that_succeeds() -> None:
    policy = InOrder("abc")
    rewards = {"a": 0.2, "b": 1.0, "c": 0.5}.__getitem__
    searched = search(rewards, policy=policy, length=1, width=3)
    assert (searched.iterations, searched.outcomes) == (1, [0.2, 1.0, 0.5])
    alone = search(rewards, policy=InOrder("abc"), length=1, width=3, evaluate="one")
    assert alone.outcomes == [1.0]


@pytest.mark.parametrize("evaluate", ["all", "one"])
def test_its_best_path_gives_the_pairs_worked_out_by_hand(evaluate: str) -> None:
    searched = search(GOLDEN, width=2, evaluate=evaluate)
    pairs = best_path_pairs(searched.tree, searched.statistics.q_values, min_margin=0.01)
    words = [(word_of(searched, better), word_of(searched, worse)) for better, worse in pairs]
    assert words == [("a", "b"), ("ab", "aa")]


@given(
    rewards=st.integers(min_value=0, max_value=1_000),
    eta=st.sampled_from([0.0, 0.5, 2.0]),
    width=st.integers(min_value=1, max_value=3),
    max_steps=st.integers(min_value=1, max_value=4),
    evaluate=st.sampled_from(["all", "one"]),
)
def test_counts_and_values_agree_with_the_outcomes(
    rewards: int, eta: float, width: int, max_steps: int, evaluate: str
) -> None:
    def reward_of(word: str) -> float:
        return derived_seed(rewards, word) % 10 / 10

    options: dict[str, Any] = {"eta": eta, "width": width, "max_steps": max_steps}
    options["evaluate"] = evaluate
    policy = InOrder("abc")
    searched = search(reward_of, policy=policy, iterations=12, stop_at=0.9, **options)
    counts, values = searched.statistics.visit_counts, searched.statistics.values
    outcomes = searched.outcomes
    assert counts[ROOT_ID] == len(outcomes)
    assert values[ROOT_ID] == pytest.approx(sum(outcomes) / len(outcomes))
    assert all(-1 <= value <= 1 for value in values.values())
    for node_id, children in enumerate(searched.tree.children):
        assert sum(counts.get(child, 0) for child in children) <= counts.get(node_id, 0)
    # After a success only siblings that have ended are valued, which takes no roll-out.
    before = [*takewhile(lambda outcome: outcome < 0.9, outcomes)]
    assert len(outcomes) - len(before) <= width
    assert searched.iterations == 12 or len(before) < len(outcomes)
    assert searched.iterations <= len(outcomes) <= searched.iterations * width
    again = search(reward_of, policy=InOrder("abc"), iterations=12, stop_at=0.9, **options)
    assert again == searched


def bandit(*, eta: float, iterations: int) -> dict[str, int]:
    """Visits of three arms."""
    searched = search(
        {"a": 0.2, "b": 0.8, "c": 0.5}.__getitem__,
        policy=InOrder("abc"),
        length=1,
        width=3,
        eta=eta,
        iterations=iterations,
        evaluate="one",
    )
    counts = searched.statistics.visit_counts
    return {word_of(searched, i): counts[i] for i in searched.tree.children[ROOT_ID]}


def test_the_best_arm_of_a_bandit_is_visited_most() -> None:
    visits = bandit(eta=0.1, iterations=90)
    assert visits["b"] > 60
    assert visits["a"] < visits["c"]


def test_without_exploration_the_search_is_greedy() -> None:
    assert bandit(eta=0.0, iterations=30) == {"a": 1, "b": 28, "c": 1}


def test_with_exploration_alone_arms_are_visited_evenly() -> None:
    assert bandit(eta=1e6, iterations=30) == {"a": 10, "b": 10, "c": 10}


def test_nothing_is_drawn_after_a_success() -> None:
    policy = InOrder()
    searched = search(lambda word: 1.0, policy=policy, width=2)
    assert searched.outcomes == [1.0]
    assert [request.n for request in policy.requests] == [2, 1, 1]
    assert searched.completion_tokens == 2 * 4


def test_a_roll_out_that_reaches_the_limit_has_failed() -> None:
    searched = search(lambda word: 1.0, width=2, max_steps=2, iterations=5, failure_value=-0.5)
    assert set(searched.outcomes) == {-0.5}
    assert max(node.depth for node in searched.tree.nodes) == 2


def test_a_state_that_is_too_long_for_the_policy_has_failed() -> None:
    searched = search(lambda word: 1.0, policy=InOrder(context=1), width=2, iterations=3)
    assert set(searched.outcomes) == {-1.0}
    assert {node.depth for node in searched.tree.nodes} == {1}


def test_equal_draws_are_one_child() -> None:
    searched = search(lambda word: 0.0, policy=InOrder("a"), width=5, iterations=2)
    assert {len(children) for children in searched.tree.children} <= {0, 1}


def test_an_unvisited_child_comes_before_any_other() -> None:
    tree = Tree("start")
    for letter in "ab":
        tree, _ = merge_branch(tree, [Step(letter, "")], source="letters")
    statistics = back_up(SearchStatistics(), (ROOT_ID, 1), 1.0)
    assert select_child(tree, statistics, ROOT_ID, eta=0.0) == 2
