"""Policies composed of others answer every request, in order."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from qguide.qnet.errors import ConfigError, HistoryTooLongError
from qguide.qnet.models.manifest import PriorSection
from qguide.qnet.records import TreeRow
from qguide.qnet.types import (
    Candidate,
    DrawRole,
    History,
    Message,
    SampleRequest,
    Sampling,
    Scorer,
    ScoreRequest,
    ScoreResult,
)
from qguide.training.data.runs import read_rows
from qguide.training.environment import Task
from qguide.training.environments.corridor import ACTIONS, CORRIDOR, Corridor, CorridorConfig, CorridorSuite
from qguide.training.environments.registry import SelectedSuite
from qguide.training.jobs.explore import ExploreConfig, run_explore
from qguide.training.rollouts.driver import run_together
from qguide.training.rollouts.policies import ListedPolicy, PolicyWithRollouts, guide_actions
from qguide.training.rollouts.rollout import RolloutTask

SAMPLING = Sampling(temperature=1.0)


@dataclass
class Counter:
    """Says "1", "2", …, each costing one token."""

    name: str = "counter"
    asked: list[int] = field(default_factory=list)

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        self.asked += [request.n for request in requests]
        return [
            [Candidate(Message("assistant", f"{r.history[-1].content}{i}"), 1) for i in range(r.n)] for r in requests
        ]


class Full:
    """No history is short enough for it."""

    name = "full"

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        raise HistoryTooLongError("too long")


class LikesTwo(Scorer):
    """Q is 1 for what ends with 2."""

    name = "likes-two"

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        return [ScoreResult(tuple(float(c.content.endswith("2")) for c in r.candidates), 0) for r in requests]


def ask(text: str, n: int, role: DrawRole) -> SampleRequest:
    return SampleRequest((Message("user", text),), n, SAMPLING, role)


def said(answers: Sequence[Sequence[Candidate]]) -> list[list[str]]:
    return [[candidate.message.content for candidate in candidates] for candidates in answers]


def asking(*requests: SampleRequest) -> RolloutTask[list[list[Candidate]]]:
    """A task that makes these requests, one after the other."""
    answers: list[list[Candidate]] = []
    for request in requests:
        answers.append((yield request))
    return answers


def test_the_agents_own_reply_is_the_guided_one_and_costs_what_all_cost() -> None:
    policy = Counter()
    requests = [ask("a", 1, "act"), ask("b", 3, "branch"), ask("c", 1, "rollout")]
    task = guide_actions(asking(*requests, ask("d", 1, "act")), num_candidates=4)
    [answers] = run_together([task], policy=policy, scorer=LikesTwo())
    assert said(answers) == [["a2"], ["b0", "b1", "b2"], ["c0"], ["d2"]]
    assert [candidates[0].completion_tokens for candidates in answers] == [4, 1, 1, 4]
    assert policy.asked == [4, 3, 1, 4]


class Repeats(Counter):
    """Says "1" thrice and "2" once."""

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        return [[Candidate(Message("assistant", text), 1) for text in "1112"[: r.n]] for r in requests]


def test_a_guide_with_a_prior_weighs_the_votes() -> None:
    def reply(prior: PriorSection | None) -> str:
        task = guide_actions(asking(ask("a", 1, "act")), num_candidates=4, prior=prior)
        return said(run_together([task], policy=Repeats(), scorer=LikesTwo())[0])[0][0]

    assert (reply(None), reply(PriorSection(tau=0.1)), reply(PriorSection(tau=10))) == ("2", "2", "1")


def test_a_failed_draw_is_the_guided_tasks_to_handle() -> None:
    def task() -> RolloutTask[str]:
        try:
            yield ask("a", 1, "act")
        except HistoryTooLongError:
            return "handled"
        return "drawn"

    [result] = run_together([guide_actions(task(), num_candidates=2)], policy=Full())
    assert result == "handled"


def test_rollouts_are_the_other_policys() -> None:
    branching, rollouts = Counter(), Counter()
    both = PolicyWithRollouts(branching, rollouts)
    answers = both.sample_batch([ask("a", 1, "rollout"), ask("b", 2, "branch"), ask("c", 1, "rollout")])
    assert said(answers) == [["a0"], ["b0", "b1"], ["c0"]]
    assert (branching.asked, rollouts.asked) == ([2], [1, 1])


class SolvedCorridors(CorridorSuite):
    """Corridors whose solutions are on record."""

    def gold_replies(self, task: Task) -> Sequence[str]:
        return [f"Action: {action}" for action in Corridor.of_seed(int(task.source)).solution()]


def corridors(suite: CorridorSuite, **changes: Any) -> SelectedSuite:
    return SelectedSuite("fake", suite.tasks, suite, replace(CORRIDOR, **changes))


def test_a_tree_grows_without_a_model(tmp_path: Path) -> None:
    config = ExploreConfig(output=tmp_path, policy="random", environment=CorridorConfig(count=3))
    run_explore(config)
    rows = list(read_rows(config.output / "rows.jsonl", TreeRow))
    taken = {node.action for row in rows for node in row.nodes}
    assert len(rows) == 3
    assert len(taken) > 2
    assert taken <= {f"Action: {action}" for action in ACTIONS}


def test_solutions_are_followed_until_a_random_action_leaves_them() -> None:
    suite = SolvedCorridors(count=4)
    policy = ListedPolicy(corridors(suite), scripted=True)
    start = (Message("user", suite.make(suite.tasks[3]).reset()),)
    [first, *onward] = suite.gold_replies(suite.tasks[3])
    greedy, drawn = Sampling(temperature=0.0), Sampling(temperature=0.5, seed=1)

    def replies(history: History, n: int, sampling: Sampling) -> list[str]:
        [candidates] = policy.sample_batch([SampleRequest(history, n, sampling)])
        return [candidate.message.content for candidate in candidates]

    assert replies(start, 2, greedy) == [first, first]
    assert 60 < replies(start, 100, drawn).count(first) < 85  # half, and a fifth of the other half at most
    led = (*start, Message("assistant", f"Thought: so.\n{first}"), Message("user", "…"))
    assert replies(led, 1, greedy) == onward[:1]
    left = (*start, Message("assistant", "Action: look"), Message("user", "…"))
    assert len(set(replies(left, 20, greedy))) > 2


def test_numbered_choices_are_listed_actions() -> None:
    suite = corridors(CorridorSuite(count=1))
    policy = ListedPolicy(suite, scripted=False)
    suite.environment = replace(CORRIDOR, actions=None)
    history = (Message("user", "Choose.\n1. Sing\n2. Dance"),)
    refused = (*history, Message("assistant", "1. Fly\n2. Swim\n3. Run"), Message("user", "That is none of them."))
    for state in (history, refused):
        [drawn] = policy.sample_batch([SampleRequest(state, 20, SAMPLING)])
        assert {candidate.message.content for candidate in drawn} == {"Action: 1", "Action: 2"}


def test_an_environment_that_lists_no_actions_is_refused_before_anything_is_played() -> None:
    with pytest.raises(ConfigError, match=r"policy is 'random', .*fake .*`actions`.*environment\.actions"):
        ListedPolicy(corridors(CorridorSuite(count=1), actions=None), scripted=False)
    with pytest.raises(ConfigError, match=r"'fake' .*player 'gold' .*policy 'scripted'"):
        ListedPolicy(corridors(CorridorSuite(count=1)), scripted=True)
