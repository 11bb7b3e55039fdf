"""Loss of a packed row of preference pairs: direct preference optimization.

    Q(s, a) = beta * (log pi_theta(a | s) - log pi_ref(a | s))          (StepQ, equation 9)
    loss = -log sigmoid(Q(s, a_chosen) - Q(s, a_rejected))              (StepQ, equations 7 and 8)

The logarithms are sums over the tokens of the replies, their end-of-turn tokens included; those of
observations do not count. At the level of trajectories a is all replies of an episode.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from torch import Tensor
from torch.nn.functional import logsigmoid

from qguide.qnet.engine.kernels import upload
from qguide.training.data.preferences import Level
from qguide.training.optimization.objective import Loss
from qguide.training.optimization.packed_replies import PackedReplies
from qguide.training.policy_training.options import DpoLossOptions


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
