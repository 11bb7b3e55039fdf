"""Validation of an implicit Q on held-back pairs and decisions (StepQ, figure 4)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from qguide.training.algorithms.choice_quality import ScoredChoice, choice_quality
from qguide.training.algorithms.dpo import implicit_q
from qguide.training.optimization.packed_replies import PackedReplies
from qguide.training.policy_training.logprobs import reply_logprobs
from qguide.training.policy_training.objective import q_of_pairs


@dataclass(frozen=True, slots=True)
class Referenced:
    """Packed rows, and log pi of their replies under the reference."""

    trees: Sequence[PackedReplies]
    reference: Sequence[Tensor]

    def __iter__(self) -> Iterator[tuple[PackedReplies, Tensor]]:
        return zip(self.trees, self.reference, strict=True)


@torch.no_grad()
def validate(
    policy: PreTrainedModel,
    pairs: Referenced,
    other_pairs: Referenced,
    groups: Referenced,
    *,
    beta: float,
) -> dict[str, float]:
    """Figures of the held-back examples, if there are any.

    Args:
        pairs: held-back pairs of the same source, that is, in distribution.
        other_pairs: pairs of another source, such as another policy, that is, out of distribution.
        groups: candidates whose steps to the goal are known.
        beta: beta of the implicit Q.

    Returns:
        `preference_accuracy`: share of pairs whose chosen side has the higher Q (a tie counts
        half). `preference_margin`: mean difference of their Q. Both also with `_other`, for
        `other_pairs`. And the figures of `choice_quality`.
    """
    policy.eval()
    figures: dict[str, float] = {}
    for rows, suffix in ((pairs, ""), (other_pairs, "_other")):
        margins = [m for tree, r in rows for m in _margins(policy, tree, r, beta=beta)]
        if margins:
            right = sum((m > 0) + 0.5 * (m == 0) for m in margins)
            figures |= {
                f"preference_accuracy{suffix}": right / len(margins),
                f"preference_margin{suffix}": sum(margins) / len(margins),
                f"preference_pairs{suffix}": len(margins),
            }
    if assessed := scored_choices(policy, groups, beta=beta):
        figures |= choice_quality(assessed)
    return figures


@torch.no_grad()
def scored_choices(
    policy: PreTrainedModel, groups: Referenced, *, beta: float
) -> list[ScoredChoice]:
    """The decisions of packed groups with the implicit Q."""
    policy.eval()
    return [g for tree, r in groups for g in _groups(policy, tree, r, beta=beta)]


def _margins(
    policy: PreTrainedModel, tree: PackedReplies, reference_R: Tensor, *, beta: float
) -> list[float]:
    chosen_P, rejected_P = q_of_pairs(reply_logprobs(policy, tree), reference_R, tree, beta=beta)
    margins: list[float] = (chosen_P - rejected_P).tolist()
    return margins


def _groups(
    policy: PreTrainedModel, tree: PackedReplies, reference_R: Tensor, *, beta: float
) -> list[ScoredChoice]:
    q_R = implicit_q(reply_logprobs(policy, tree).cpu(), reference_R, beta=beta)
    return [
        ScoredChoice(
            q_values=q_R[list(g.replies)].tolist(),
            steps=g.steps,
            valid=g.valid,
            draws=g.draws,
            values=g.values,
            logprobs=g.logprobs,
            task=g.task,
            greedy=g.greedy,
        )
        for g in tree.groups
    ]
