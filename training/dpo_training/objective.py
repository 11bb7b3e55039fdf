"""Loss of a packed row of preference pairs."""

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from qnet.models.implicit_q import PAPER_BETA
from training.algorithms.dpo import dpo_loss, implicit_q
from training.data.preferences import Level
from training.optimization.packed_replies import PackedPair, PackedReplies
from training.optimization.trainer import Loss


class LevelWeights(BaseModel):
    """Weights of a pair's loss by its level.

    Attributes:
        step: weight of pairs of actions.
        trajectory: weight of pairs of episodes.
        sft: weight of -log pi of the chosen trajectories, which IPR adds (equation 10).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: float = Field(default=1.0, gt=0)
    trajectory: float = Field(default=1.0, gt=0)
    sft: float = Field(default=0.0, ge=0)


class DpoObjective(BaseModel):
    """Options of the loss.

    Attributes:
        beta: strength of the tie to the reference; the Q model is served with the same value.
        weights: weights of the levels.
        gap_power: a pair's weight is the difference of its values to this power. 0 counts all pairs
            alike, as the papers do; higher powers (ours) make costly mistakes count more.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    beta: float = Field(default=PAPER_BETA, gt=0)
    weights: LevelWeights = LevelWeights()
    gap_power: float = Field(default=0.0, ge=0)


def pairs_loss(
    policy_R: Tensor, reference_R: Tensor, packed: PackedReplies, objective: DpoObjective
) -> Loss:
    """Weighted DPO loss of all pairs, and the sum of the weights.

    Args:
        policy_R: log pi of the replies under the policy.
        reference_R: the same under the reference.
    """
    chosen_q_P, rejected_q_P = q_of_pairs(policy_R, reference_R, packed, beta=objective.beta)
    weight_P = torch.tensor([_weight(pair, objective) for pair in packed.pairs])
    error_P = dpo_loss(chosen_q_P, rejected_q_P)
    total = (weight_P.to(error_P.device) * error_P).sum()
    whole = [pair.chosen for pair in packed.pairs if pair.level == "trajectory"]
    if objective.weights.sft and whole:
        total = total - objective.weights.sft * policy_R[whole].sum()
    return Loss(total, float(weight_P.sum()))


def q_of_pairs(
    policy_R: Tensor, reference_R: Tensor, packed: PackedReplies, *, beta: float
) -> tuple[Tensor, Tensor]:
    """(P,) implicit Q of the chosen and of the rejected side of each pair."""
    q_R = implicit_q(policy_R, reference_R.to(policy_R.device), beta=beta)
    chosen = [pair.chosen for pair in packed.pairs]
    rejected = [pair.rejected for pair in packed.pairs]
    return q_R[chosen], q_R[rejected]


def _weight(pair: PackedPair, objective: DpoObjective) -> float:
    of_level: dict[Level, float] = {
        "step": objective.weights.step,
        "trajectory": objective.weights.trajectory,
    }
    return of_level[pair.level] * float(pair.gap**objective.gap_power)
