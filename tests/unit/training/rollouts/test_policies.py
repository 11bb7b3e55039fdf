"""Policies composed of others answer every request, in order."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from qnet.types import (
    Candidate,
    DrawRole,
    Message,
    SampleRequest,
    Sampling,
    ScoreRequest,
    ScoreResult,
)
from training.rollouts.policies import GuidedPolicy, PolicyWithRollouts

SAMPLING = Sampling(temperature=1.0)


@dataclass
class Counter:
    """Says "1", "2", …, each costing one token."""

    name: str = "counter"
    asked: list[int] = field(default_factory=list)

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        self.asked += [request.n for request in requests]
        return [
            [Candidate(Message("assistant", f"{r.history[-1].content}{i}"), 1) for i in range(r.n)]
            for r in requests
        ]


class LikesTwo:
    """Q is 1 for what ends with 2."""

    name = "likes-two"

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        return [
            ScoreResult(tuple(float(c.content.endswith("2")) for c in r.candidates), 0)
            for r in requests
        ]


def ask(text: str, n: int, role: DrawRole) -> SampleRequest:
    return SampleRequest((Message("user", text),), n, SAMPLING, role)


def said(answers: Sequence[Sequence[Candidate]]) -> list[list[str]]:
    return [[candidate.message.content for candidate in candidates] for candidates in answers]


def test_the_agents_own_reply_is_the_guided_one_and_costs_what_all_cost() -> None:
    policy = Counter()
    guided = GuidedPolicy(policy, LikesTwo(), num_candidates=4)
    answers = guided.sample_batch(
        [ask("a", 1, "act"), ask("b", 3, "branch"), ask("c", 1, "rollout"), ask("d", 1, "act")]
    )
    assert said(answers) == [["a2"], ["b0", "b1", "b2"], ["c0"], ["d2"]]
    assert [candidates[0].completion_tokens for candidates in answers] == [4, 1, 1, 4]
    assert sorted(policy.asked) == [1, 3, 4, 4]


def test_rollouts_are_the_other_policys() -> None:
    branching, rollouts = Counter(), Counter()
    both = PolicyWithRollouts(branching, rollouts)
    answers = both.sample_batch(
        [ask("a", 1, "rollout"), ask("b", 2, "branch"), ask("c", 1, "rollout")]
    )
    assert said(answers) == [["a0"], ["b0", "b1"], ["c0"]]
    assert (branching.asked, rollouts.asked) == ([2], [1, 1])
