"""Policies composed of others answer every request, in order."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from qguide.qnet.errors import HistoryTooLongError
from qguide.qnet.types import Candidate, DrawRole, Message, SampleRequest, Sampling, Scorer, ScoreRequest, ScoreResult
from qguide.training.rollouts.driver import run_together
from qguide.training.rollouts.policies import PolicyWithRollouts, guide_actions
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
