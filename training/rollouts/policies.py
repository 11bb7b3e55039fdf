"""Policies composed of other policies, for trees that no single policy would grow."""

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from qguide.qnet.decision.decide import decide
from qguide.qnet.decision.decision import Decision, Guidance
from qguide.qnet.types import BatchPolicy, Candidate, SampleRequest
from qguide.training.rollouts.hosted import HostedPolicy
from qguide.training.rollouts.rollout import RolloutRequest, RolloutTask, answered_by

T = TypeVar("T")


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
                policy.sample_batch([r for r, flag in zip(requests, is_rollout, strict=True) if flag == rollout])
            )
            for rollout, policy in ((False, self._branching), (True, self._rollouts))
        }
        return [next(answers[flag]) for flag in is_rollout]


class HostedPolicyWithRollouts:
    """The same where at least one of the two policies is hosted."""

    def __init__(self, branching: BatchPolicy | HostedPolicy, rollouts: BatchPolicy | HostedPolicy) -> None:
        self.name = branching.name
        self.branching = branching
        self.rollouts = rollouts


HostedPolicies = HostedPolicy | HostedPolicyWithRollouts

JobPolicy = BatchPolicy | HostedPolicies
"""Any policy that a job can draw from."""


def with_rollouts(branching: BatchPolicy | HostedPolicy, rollouts: BatchPolicy | HostedPolicy) -> JobPolicy:
    """`branching`, with the draws of roll-outs by `rollouts`."""
    if isinstance(branching, HostedPolicy) or isinstance(rollouts, HostedPolicy):
        return HostedPolicyWithRollouts(branching, rollouts)
    return PolicyWithRollouts(branching, rollouts)


def guide_actions(task: RolloutTask[T], *, num_candidates: int) -> RolloutTask[T]:
    """The same task with guided actions: each is the argmax of Q over candidates of the policy.

    With it, the paths of a tree lead through states that the guided agent reaches, and the branches
    are the candidates between which the agent must choose there.

    Args:
        task: a rollout task whose draws for the role "act" are of one candidate.
    """

    def guided(request: RolloutRequest) -> Generator[RolloutRequest, Any, Any]:
        if not (isinstance(request, SampleRequest) and request.role == "act"):
            return (yield request)
        guidance = Guidance(num_candidates, request.sampling)
        return [_best((yield from decide(request.history, guidance)))]

    return answered_by(task, guided)


def _best(decision: Decision) -> Candidate:
    """The chosen candidate, charged with the tokens of all candidates."""
    chosen = decision.candidates[decision.chosen]
    return replace(chosen, completion_tokens=decision.usage.completion_tokens)
