"""Policies that are made of others, for trees that no single one would grow."""

from collections.abc import Sequence
from dataclasses import replace

from qnet.decision.selection import distinct, select
from qnet.types import BatchPolicy, Candidate, Message, SampleRequest, Scorer, ScoreRequest


class PolicyWithRollouts:
    """Deviations, drawn hot, from one policy; what is drawn at temperature 0 from another.

    A small policy proposes the mistakes that it makes; an expert plays on after each. So a tree
    costs one drawn action per branch, and its Q says what a mistake costs one who knows the way
    back, not how often the policy happens to find it.
    """

    def __init__(self, deviating: BatchPolicy, rollouts: BatchPolicy) -> None:
        self.name = deviating.name
        self._deviating = deviating
        self._rollouts = rollouts

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, in order."""
        hot = [request.sampling.temperature != 0 for request in requests]
        answers = {
            is_hot: iter(
                policy.sample_batch([r for r, h in zip(requests, hot, strict=True) if h == is_hot])
            )
            for is_hot, policy in ((True, self._deviating), (False, self._rollouts))
        }
        return [next(answers[is_hot]) for is_hot in hot]


class GuidedPolicy:
    """One hot reply is the argmax of Q over M candidates; more than one are the policy's own.

    So the way through a tree leads where the guided agent gets itself, and the actions that are
    compared there are still those that it will have to choose among.
    """

    def __init__(self, policy: BatchPolicy, scorer: Scorer, *, num_candidates: int) -> None:
        """Guide `policy` by `scorer`, M being `num_candidates`."""
        self.name = policy.name
        self._policy = policy
        self._scorer = scorer
        self._num_candidates = num_candidates

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, in order."""
        guided = [r.n == 1 and r.sampling.temperature != 0 for r in requests]
        drawn = self._policy.sample_batch(
            [
                replace(r, n=self._num_candidates) if is_guided else r
                for r, is_guided in zip(requests, guided, strict=True)
            ]
        )
        asked = [r for r, is_guided in zip(requests, guided, strict=True) if is_guided]
        among = [c for c, is_guided in zip(drawn, guided, strict=True) if is_guided]
        chosen = iter(self._choose(asked, among))
        return [
            [next(chosen)] if is_guided else candidates
            for candidates, is_guided in zip(drawn, guided, strict=True)
        ]

    def _choose(
        self, requests: Sequence[SampleRequest], drawn: Sequence[Sequence[Candidate]]
    ) -> list[Candidate]:
        """The best of each request's candidates; it has cost the tokens of all."""
        messages = [distinct([c.message for c in candidates]).messages for candidates in drawn]
        scored = self._scorer.score(
            [ScoreRequest(r.history, m) for r, m in zip(requests, messages, strict=True)]
        )
        return [
            _with_cost_of_all(different[select(different, result.q_values).chosen], candidates)
            for different, result, candidates in zip(messages, scored, drawn, strict=True)
        ]


def _with_cost_of_all(chosen: Message, candidates: Sequence[Candidate]) -> Candidate:
    best = next(candidate for candidate in candidates if candidate.message == chosen)
    return replace(best, completion_tokens=sum(c.completion_tokens for c in candidates))
