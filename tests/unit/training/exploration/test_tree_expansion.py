"""Exploration on a small world whose every trajectory is known."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from pydantic import ValidationError

from qguide.qnet.errors import EnvironmentFailureError, HistoryTooLongError, QGuideError
from qguide.qnet.records import ROOT_ID
from qguide.qnet.types import Candidate, Message, SampleRequest
from qguide.training.environment import Environment
from qguide.training.exploration.tree_expansion import Exploration, ExploredTree, explore_task
from qguide.training.rollouts.driver import run_rollouts
from qguide.training.rollouts.game import Game
from qguide.training.rollouts.rollout import TaskTimings
from qguide.training.trajectory import Step, action_key
from tests.support.letter_world import LetterWorld

ACTIONS = ("a", "b", "c")


class LetterPolicy:
    """Takes the seed's letters in turn; greedy is always "a"."""

    name = "letters"

    def __init__(self, letters: str = "abc", context: int = 99) -> None:
        self._letters = letters
        self._context = context
        self.requests: list[SampleRequest] = []

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        return [self._sample(request) for request in requests]

    def _sample(self, request: SampleRequest) -> list[Candidate]:
        if len(request.history) > self._context:
            raise HistoryTooLongError("history is too long")
        self.requests.append(request)
        assert request.sampling.seed is not None
        first = request.sampling.seed % len(self._letters)
        return [
            _candidate("a" if request.sampling.temperature == 0 else self._letter(first + i)) for i in range(request.n)
        ]

    def _letter(self, place: int) -> str:
        return self._letters[place % len(self._letters)]


def _candidate(letter: str) -> Candidate:
    return Candidate(Message("assistant", f"Thought: hm\nAction: {letter}"), 2)


def explore(
    exploration: Exploration,
    *,
    reward_of: Callable[[str], float] = lambda word: 1.0,
    policy: LetterPolicy | None = None,
    expert: Sequence[Step] = (),
    make: Callable[[], Environment] | None = None,
    seed: int = 0,
) -> ExploredTree:
    done: list[ExploredTree] = []
    failures: list[QGuideError] = []

    def keep(name: str, explored: ExploredTree, timings: TaskTimings) -> None:
        done.append(explored)

    process = explore_task(
        Game(make or (lambda: LetterWorld(reward_of)), (seed, "spell")), exploration, source="letters", expert=expert
    )
    run_rollouts(
        [("spell", process)],
        policy=policy or LetterPolicy(),
        parallel=1,
        on_done=keep,
        on_failure=lambda name, error: failures.append(error),
    )
    if failures:
        raise failures[0]
    return done[0]


def spelled(explored: ExploredTree) -> set[str]:
    tree = explored.tree
    return {"".join(action_key(node.step.action) for node in tree.path(leaf.id)) for leaf in tree.leaves()}


def expert_steps(word: str, reward: float = 1.0) -> list[Step]:
    steps = [Step(f"Action: {letter}", f"{word[: i + 1]}.") for i, letter in enumerate(word)]
    return [*steps[:-1], replace(steps[-1], reward=reward, terminated=True)]


def test_every_node_within_the_depth_gets_its_full_width() -> None:
    explored = explore(Exploration(width=3, depth=2, max_draws=99))
    assert len(spelled(explored)) == 27
    assert {len(children) for children in explored.tree.children} == {0, 3}
    assert explored.draws == 27


def test_nodes_below_the_depth_are_not_expanded_though_trajectories_go_on() -> None:
    explored = explore(Exploration(width=2, depth=0, max_draws=99))
    tree = explored.tree
    assert len(tree.children[ROOT_ID]) == 2
    assert all(len(tree.children[node.id]) == (node.depth < 3) for node in tree.nodes)


def test_a_zero_outcome_stops_expansion_on_its_branch() -> None:
    explored = explore(Exploration(width=3, depth=2, max_draws=99), reward_of=lambda word: float(word[0] == "a"))
    tree = explored.tree
    widths = {action_key(tree.node(child).step.action): len(tree.children[child]) for child in tree.children[ROOT_ID]}
    assert widths == {"a": 3, "b": 1, "c": 1}


def test_without_the_stop_failures_are_expanded_too() -> None:
    explored = explore(Exploration(width=2, depth=2, max_draws=99, stop_on_zero=False), reward_of=lambda word: 0.0)
    assert len(spelled(explored)) == 8


def test_where_the_policy_always_fails_the_experts_branch_is_expanded() -> None:
    explored = explore(
        Exploration(width=3, depth=2, max_draws=99),
        reward_of=lambda word: float(word == "cba"),
        expert=expert_steps("cba"),
    )
    tree = explored.tree
    expert_path = next(tree.path(leaf.id) for leaf in tree.leaves() if leaf.step.reward)
    assert [action_key(node.step.action) for node in expert_path] == ["c", "b", "a"]
    assert len(tree.children[ROOT_ID]) == 3
    assert all(len(tree.children[node.id]) == 3 for node in expert_path[:-1])


def test_the_experts_branch_keeps_half_of_the_draws() -> None:
    explored = explore(Exploration(width=2, depth=2, max_draws=4), expert=expert_steps("ccc"))
    assert explored.draws == 4
    sources = [node.source for node in explored.tree.nodes]
    assert "expert" in sources
    after_expert = sources[sources.index("expert") :]
    assert after_expert.count("letters") > 0


def test_draws_are_bounded() -> None:
    explored = explore(Exploration(width=3, depth=2, max_draws=5))
    assert explored.draws == 5
    assert len(spelled(explored)) == 5


def test_a_policy_that_repeats_itself_is_given_up_after_width_misses() -> None:
    explored = explore(Exploration(width=2, depth=2, max_draws=99), policy=LetterPolicy("b"))
    assert spelled(explored) == {"bbb"}
    assert explored.draws == 1
    assert explored.misses == 2 * 3


def test_replies_that_differ_in_their_thoughts_alone_are_one_action() -> None:
    explored = explore(Exploration(width=3, depth=2), expert=expert_steps("abc"))
    for children in explored.tree.children:
        keys = [action_key(explored.tree.node(child).step.action) for child in children]
        assert len(set(keys)) == len(keys)


def test_a_trajectory_is_cut_off_at_the_step_limit_with_no_reward() -> None:
    explored = explore(Exploration(width=2, depth=8, max_steps=2, stop_on_zero=False), reward_of=lambda word: 1.0)
    assert {leaf.depth for leaf in explored.tree.leaves()} == {2}
    assert not any(leaf.step.terminated for leaf in explored.tree.leaves())


def test_a_history_that_outgrows_the_policy_cuts_the_trajectory_off() -> None:
    explored = explore(Exploration(width=2, depth=0), policy=LetterPolicy(context=3))
    assert {leaf.depth for leaf in explored.tree.leaves()} == {2}


def test_greedy_rollouts_are_cold_but_for_the_deviation() -> None:
    policy = LetterPolicy()
    explored = explore(Exploration(width=2, depth=2, greedy_rollout=True, branch_temperature=1.3), policy=policy)
    assert {(request.n, request.sampling.temperature) for request in policy.requests} == {(1, 0.0), (4, 1.3)}
    assert "aaa" in spelled(explored)


def test_unfinished_candidates_bring_nothing() -> None:
    class CutOff(LetterPolicy):
        def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
            cut = super().sample_batch(requests)
            return [[replace(candidate, finished=False) for candidate in each] for each in cut]

    explored = explore(Exploration(), policy=CutOff())
    assert explored.tree.nodes == ()
    assert explored.misses == 2


def test_tokens_of_discarded_candidates_are_counted() -> None:
    policy = LetterPolicy()
    explored = explore(Exploration(width=2, depth=2), policy=policy)
    assert explored.completion_tokens == sum(2 * request.n for request in policy.requests)


def test_the_seed_alone_decides_the_tree() -> None:
    settings = Exploration(width=2, depth=2, max_draws=6)
    assert explore(settings, seed=3) == explore(settings, seed=3)
    assert len({frozenset(spelled(explore(settings, seed=seed))) for seed in range(5)}) > 1


def test_random_expansion_reaches_the_same_full_tree() -> None:
    settings = Exploration(width=3, depth=2, max_draws=99)
    at_random = explore(settings.model_copy(update={"expand": "random"}))
    assert spelled(at_random) == spelled(explore(settings))


def test_no_environment_stays_open() -> None:
    open_worlds: list[int] = []
    explore(Exploration(width=2, depth=2), make=lambda: LetterWorld(lambda word: 1.0, open_worlds=open_worlds))
    assert open_worlds == []


def test_an_environment_that_replays_differently_is_refused() -> None:
    class Fickle(LetterWorld):
        episodes = 0

        def reset(self) -> str:
            Fickle.episodes += 1
            return f"Episode {Fickle.episodes}."

    with pytest.raises(EnvironmentFailureError, match="deterministic"):
        explore(Exploration(), make=lambda: Fickle(lambda word: 1.0))


def test_the_expert_of_another_game_is_refused() -> None:
    foreign = [replace(step, observation="elsewhere") for step in expert_steps("ccc")]
    with pytest.raises(EnvironmentFailureError, match="elsewhere"):
        explore(Exploration(width=3, depth=2), reward_of=lambda word: 0.0, expert=foreign)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValidationError, match="width"):
        Exploration(width=0)


def test_a_branch_keeps_its_candidates_and_greedy_replies_are_named() -> None:
    explored = explore(Exploration(width=2, depth=0, max_draws=99, candidates=3, greedy_rollout=True))
    first, branch = (explored.tree.node(child).step for child in explored.tree.children[ROOT_ID])
    assert [(one.count, one.greedy) for one in first.drawn] == [(1, True)]
    assert sorted(action_key(one.message.text) for one in branch.drawn) == ["a", "b", "c"]
    assert {one.greedy for one in branch.drawn} == {None}
