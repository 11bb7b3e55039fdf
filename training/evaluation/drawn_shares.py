"""Values of recorded candidates by how often a policy draws them.

An upstream states no log-probability of a reply that it has not drawn. The share of its draws that
act as a candidate does is an estimate of that probability, whatever the thoughts before the action.
"""

from collections import Counter

from pydantic import BaseModel, ConfigDict, Field

from qguide.qnet.types import Candidate, SampleRequest, Sampling
from qguide.training.data.decision_groups import DecisionGroupsRow
from qguide.training.rollouts.episode import derived_seed
from qguide.training.rollouts.rollout import RolloutTask, SampleRequests
from qguide.training.trajectory import reply_key


class PolicyDraws(BaseModel):
    """Draws of a hosted policy in each state.

    Attributes:
        n: number of draws.
        temperature: sampling temperature; at 1 the shares estimate the policy's probabilities.
        max_tokens: maximum number of completion tokens of one draw.
        parallel: number of episodes whose states are drawn for at the same time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n: int = Field(default=16, ge=1)
    temperature: float = Field(default=1.0, gt=0)
    max_tokens: int = Field(default=128, ge=1)
    parallel: int = Field(default=64, ge=1)


def drawn_shares(
    row: DecisionGroupsRow, draws: PolicyDraws, *, seed: int
) -> RolloutTask[list[list[float]]]:
    """Share of the policy's draws with each candidate's action, for every decision of an episode.

    All states are recorded, so all are drawn for at once. A state with one candidate costs nothing.
    """
    states = list(row.states())
    choices = [step for step, (_, decision) in enumerate(states) if len(decision.candidates) > 1]
    requests = [
        SampleRequest(states[step][0], draws.n, _sampling(draws, seed, row.task_id, step))
        for step in choices
    ]
    answers: list[list[Candidate]] = yield SampleRequests(tuple(requests))
    shares = [[0.0] for _ in states]
    for step, drawn in zip(choices, answers, strict=True):
        counts = Counter(reply_key(candidate.message) for candidate in drawn)
        candidates = states[step][1].candidates
        shares[step] = [counts[reply_key(c.message)] / len(drawn) for c in candidates]
    return shares


def _sampling(draws: PolicyDraws, seed: int, task_id: str, step: int) -> Sampling:
    return Sampling(draws.temperature, draws.max_tokens, seed=derived_seed(seed, task_id, step))
