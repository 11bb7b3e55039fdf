"""Group-relative loss of a packed row of decision groups, and its validation."""

from collections.abc import Sequence

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from transformers import PreTrainedModel

from qguide.qnet.engine.uploads import upload
from qguide.training.algorithms.choice_quality import ScoredChoice, choice_quality
from qguide.training.algorithms.group_relative import (
    Normalization,
    advantages,
    clipped_loss,
    divergence,
)
from qguide.training.optimization.objective import Loss
from qguide.training.optimization.packed_replies import PackedReplies
from qguide.training.policy_training.logprobs import reply_logprobs


class GroupLossOptions(BaseModel):
    """Options of the loss.

    Attributes:
        clip: epsilon, the largest change of a reply's probability that is rewarded, as a share.
        kl: beta, the strength of the tie to the reference; 0 has none.
        normalization: divide advantages by the standard deviation of their group ("std", GRPO and
            GiGPO), or not ("none", Dr. GRPO), so that costly choices count more.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    clip: float = Field(default=0.2, gt=0, lt=1)
    kl: float = Field(default=0.01, ge=0)
    normalization: Normalization = "std"


def groups_loss(
    policy_R: Tensor,
    old_R: Tensor,
    reference_R: Tensor,
    packed: PackedReplies,
    *,
    options: GroupLossOptions,
) -> Loss:
    """Loss of all draws of a packed row, and their number.

    Args:
        policy_R: log pi of the replies under the policy in training.
        old_R: the same under the policy that drew them.
        reference_R: the same under the reference.
        packed: the replies and their groups.
    """
    device = policy_R.device
    replies_R = upload([reply for group in packed.groups for reply in group.replies], device)
    draws = [n for group in packed.groups for n in group.draws]
    advantage_R = upload(
        [
            advantage
            for group in packed.groups
            for advantage in advantages(
                group.values, group.draws, normalization=options.normalization
            )
        ],
        device,
    )
    own_R, old_R = policy_R[replies_R], upload(old_R, device)[replies_R]
    loss_R = clipped_loss(own_R, old_R, advantage_R, clip=options.clip)
    if options.kl:
        reference_R = upload(reference_R, device)[replies_R]
        loss_R = loss_R + options.kl * divergence(own_R, reference_R)
    return Loss((upload(draws, device) * loss_R).sum(), float(sum(draws)))


@torch.no_grad()
def validate_choices(policy: PreTrainedModel, trees: Sequence[PackedReplies]) -> dict[str, float]:
    """Figures of the candidates that the policy finds likeliest, on held-back groups.

    Returns:
        The figures of `choice_quality` with log pi as the value, and `expected_steps`: steps to
        the goal after a candidate, weighted by the policy's probabilities among the candidates.
    """
    policy.eval()
    choices: list[ScoredChoice] = []
    expected: list[float] = []
    for tree in trees:
        logprob_R = reply_logprobs(policy, tree).cpu()
        for group in tree.groups:
            logprob_C = logprob_R[list(group.replies)]
            share_C = torch.softmax(logprob_C, dim=0)
            expected.append(float((share_C * torch.tensor(group.steps)).sum()))
            choices.append(ScoredChoice(logprob_C.tolist(), group.steps, group.valid, group.draws))
    if not choices:
        return {}
    return choice_quality(choices) | {"expected_steps": sum(expected) / len(expected)}
