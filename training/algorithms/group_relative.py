"""Group-relative policy optimization on the candidates of one state (GRPO; GiGPO's step groups).

    A_i = (v_i - mean of v) / std of v                        over the draws of the state's group
    rho_i = pi_theta(a_i | s) / pi_old(a_i | s)
    loss_i = -min(rho_i A_i, clip(rho_i, 1 - epsilon, 1 + epsilon) A_i)
             + beta / 2 (log pi_ref - log pi_theta)^2

v is what came of a candidate, by playing on. The ratio is that of the whole reply, as in GiGPO. The
last term estimates the divergence from the reference; GRPO's own estimate, exp(d) - d - 1 for the
difference d, is one of single tokens and explodes with the large d of whole replies. A decision
group is GiGPO's group of an anchor state: candidates of the same state, so that no other episode
has to reach it by chance.

Groups should be drawn at temperature 1, as pi is meant. Greedy draws and draws at other
temperatures count as if they were (ours), which weighs likely candidates more.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

import torch
from torch import Tensor

Normalization = Literal["std", "none"]
"""Divide advantages by the standard deviation of their group, or not (Dr. GRPO)."""

_TIED = 1e-9


def advantages(
    values: Sequence[float], draws: Sequence[int], *, normalization: Normalization = "std"
) -> list[float]:
    """Advantage of each distinct candidate over the mean draw of its group; 0 if all are equal.

    Args:
        values: of the candidates.
        draws: how often each was drawn.
    """
    mean = fmean(values, weights=draws)
    deviations = [value - mean for value in values]
    std = fmean([deviation**2 for deviation in deviations], weights=draws) ** 0.5
    if std < _TIED:
        return [0.0] * len(values)
    return [deviation / std if normalization == "std" else deviation for deviation in deviations]


def clipped_loss(policy_R: Tensor, old_R: Tensor, advantage_R: Tensor, *, clip: float) -> Tensor:
    """(R,) clipped surrogate of each reply; its gradient is that of -A log pi where rho is 1.

    Args:
        policy_R: log pi of each reply under the policy in training, summed over its tokens.
        old_R: the same under the policy that drew them.
        advantage_R: of each reply.
        clip: epsilon.
    """
    ratio_R = torch.exp(policy_R - old_R)
    clipped_R = ratio_R.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio_R * advantage_R, clipped_R * advantage_R)


def divergence(policy_R: Tensor, reference_R: Tensor) -> Tensor:
    """(R,) estimate of the divergence from the reference at each reply, at least 0."""
    return (reference_R - policy_R).square() / 2
