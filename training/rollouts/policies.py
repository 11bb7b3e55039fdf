"""Policies composed of other policies, for trees that no single policy would grow."""

from collections.abc import Sequence
from dataclasses import replace

from qnet.decision.decide import Decision, Guidance, decide
from qnet.types import BatchPolicy, Candidate, SampleRequest, Scorer
from training.rollouts.rollout import run_together


class PolicyWithRollouts:
    """One policy for the agent's own actions and for branches, another for roll-outs.

    For example, a small policy proposes the mistakes that it makes, and an expert plays on after
    each. Then a tree costs one drawn action per branch, and its Q measures the cost of a mistake to
    an agent that knows the way back, not how often the policy happens to find it.
    """

    def __init__(self, branching: BatchPolicy, rollouts: BatchPolicy) -> None:
        self.name = branching.name
        self._branching = branching
        self._rollouts = rollouts

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, in order."""
        is_rollout = [request.role == "rollout" for request in requests]
        answers = {
            rollout: iter(
                policy.sample_batch(
                    [r for r, flag in zip(requests, is_rollout, strict=True) if flag == rollout]
                )
            )
            for rollout, policy in ((False, self._branching), (True, self._rollouts))
        }
        return [next(answers[flag]) for flag in is_rollout]


class GuidedPolicy:
    """A policy whose own actions are guided: the argmax of Q over M candidates of another policy.

    With it, the paths of a tree lead through states that the guided agent reaches, and the branches
    are the candidates between which the agent must choose there.
    """

    def __init__(self, policy: BatchPolicy, scorer: Scorer, *, num_candidates: int) -> None:
        """Guide `policy` by `scorer` with `num_candidates` candidates per action."""
        self.name = policy.name
        self._policy = policy
        self._scorer = scorer
        self._num_candidates = num_candidates

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, in order."""
        plain = [request for request in requests if request.role != "act"]
        drawn = iter(self._policy.sample_batch(plain) if plain else [])
        decisions = iter(
            run_together(
                [
                    decide(r.history, Guidance(self._num_candidates, r.sampling))
                    for r in requests
                    if r.role == "act"
                ],
                policy=self._policy,
                scorer=self._scorer,
            )
        )
        return [
            [self._best(next(decisions))] if request.role == "act" else next(drawn)
            for request in requests
        ]

    @staticmethod
    def _best(decision: Decision) -> Candidate:
        """The chosen candidate, charged with the tokens of all candidates."""
        chosen = decision.candidates[decision.chosen]
        return replace(chosen, completion_tokens=decision.usage.completion_tokens)
