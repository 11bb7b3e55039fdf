"""Loss of a packed row of preference pairs: direct preference optimization.

    Q(s, a) = beta * (log pi_theta(a | s) - log pi_ref(a | s))          (StepQ, equation 9)
    loss = -log sigmoid(Q(s, a_chosen) - Q(s, a_rejected))              (StepQ, equations 7 and 8)

The logarithms are sums over the tokens of the replies, their end-of-turn tokens included; those of
observations do not count. At the level of trajectories a is all replies of an episode.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Self, get_args

from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import logsigmoid

from qguide.qnet.engine.kernels import upload
from qguide.qnet.models.implicit_q import PAPER_BETA
from qguide.training.data.preferences import Level
from qguide.training.optimization.objective import Loss
from qguide.training.optimization.packed_replies import PackedReplies
from qguide.training.options import JobOptions


def implicit_q(policy_logprob: Tensor, reference_logprob: Tensor, *, beta: float) -> Tensor:
    """Implicit Q of replies: (R,) and (R,) to (R,).

    Args:
        policy_logprob: of each reply under the policy, summed over its tokens.
        reference_logprob: the same under the reference.
        beta: strength of the tie to the reference, above 0.
    """
    return beta * (policy_logprob - reference_logprob)


def dpo_loss(chosen_q: Tensor, rejected_q: Tensor) -> Tensor:
    """Loss of each pair: (P,) and (P,) to (P,); log 2 where the Q-values are equal."""
    return -logsigmoid(chosen_q - rejected_q)


Mixture = Literal["pairs", "levels"]
"""One mean over all pairs, or the sum of each level's own mean."""


class LevelWeights(JobOptions):
    """Weights of a pair's loss by its level.

    Attributes:
        step: weight of pairs of actions.
        suffix: weight of pairs of everything from a step on (IPR's step-DPO, equation 8).
        trajectory: weight of pairs of episodes.
        sft: weight of -log pi of the chosen trajectories, which IPR adds (equation 9).

    0 leaves out a term of the mixture "levels".
    """

    step: float = Field(default=1.0, ge=0)
    suffix: float = Field(default=1.0, ge=0)
    trajectory: float = Field(default=1.0, ge=0)
    sft: float = Field(default=0.0, ge=0)


class DpoLossOptions(JobOptions):
    """Options of the loss.

    Attributes:
        beta: strength of the tie to the reference; the Q model is served with the same value.
        weights: weights of the levels.
        mixture: "pairs" is the weighted mean over all pairs; "levels" adds up the mean of each
            level, as IPR does (equation 10), so that the level with more pairs counts no more.
    """

    beta: float = Field(default=PAPER_BETA, gt=0)
    weights: LevelWeights = LevelWeights()
    mixture: Mixture = "pairs"

    @model_validator(mode="after")
    def _batches_weigh_something(self) -> Self:
        zeros = [level for level in get_args(Level) if not getattr(self.weights, level)]
        if zeros and self.mixture == "pairs":
            raise ValueError(
                f'weights.{zeros[0]} is 0, and with mixture = "pairs" a batch of such pairs has no '
                'mean; use mixture = "levels", or leave those pairs out'
            )
        return self


@dataclass(frozen=True, slots=True)
class PairWeights:
    """Weights of the pairs of one data set.

    Attributes:
        of_level: factor of the loss of a pair.
        sft: factor of -log pi of a chosen trajectory.
        counts_alike: pairs count alike in the divisor; otherwise each counts its weight.
    """

    of_level: Mapping[Level, float]
    sft: float
    counts_alike: bool

    @classmethod
    def of(cls, objective: DpoLossOptions, rows: Iterable[PackedReplies]) -> Self:
        """Weights for packed rows.

        With the mixture "levels", a pair of level l has the weight w_l * P / P_l for P pairs of
        which P_l have that level, so the mean over all pairs is the sum of the levels' means.
        """
        weights = objective.weights
        given: dict[Level, float] = {"step": weights.step, "suffix": weights.suffix, "trajectory": weights.trajectory}
        if objective.mixture == "pairs":
            return cls(given, weights.sft, counts_alike=False)
        pairs = [pair for row in rows for pair in row.pairs]
        counts = Counter(pair.level for pair in pairs)
        whole = counts["trajectory"]
        return cls(
            {level: given[level] * len(pairs) / count for level, count in counts.items()},
            weights.sft * len(pairs) / whole if whole else 0.0,
            counts_alike=True,
        )


def pairs_loss(
    policy_R: Tensor, reference_R: Tensor, packed: PackedReplies, *, weights: PairWeights, beta: float
) -> Loss:
    """Weighted DPO loss of all pairs, and their part of the divisor."""
    chosen_q_P, rejected_q_P = q_of_pairs(policy_R, reference_R, packed, beta=beta)
    weights_P = [weights.of_level[pair.level] for pair in packed.pairs]
    error_P = dpo_loss(chosen_q_P, rejected_q_P)
    total = (upload(weights_P, error_P.device) * error_P).sum()
    whole = [pair.chosen for pair in packed.pairs if pair.level == "trajectory"]
    if weights.sft and whole:
        total = total - weights.sft * policy_R[upload(whole, policy_R.device)].sum()
    return Loss(total, len(packed.pairs) if weights.counts_alike else sum(weights_P))


def q_of_pairs(policy_R: Tensor, reference_R: Tensor, packed: PackedReplies, *, beta: float) -> tuple[Tensor, Tensor]:
    """(P,) implicit Q of the chosen and of the rejected side of each pair."""
    q_R = implicit_q(policy_R, upload(reference_R, policy_R.device), beta=beta)
    chosen = [pair.chosen for pair in packed.pairs]
    rejected = [pair.rejected for pair in packed.pairs]
    return q_R[upload(chosen, q_R.device)], q_R[upload(rejected, q_R.device)]
