"""Improve a policy by what came of its own candidates: group-relative optimization (GRPO, GiGPO).

    qguide train-policy --config training/configs/alfworld/train_policy.toml

reads decision groups that the policy drew; writes a policy to which their better candidates are
likelier. It is reinforcement learning on the same data that a QNet is trained on, so the two can be
compared: a better policy, or a Q model beside the old one. For another round, draw groups with the
new policy and name the first one as `reference`.

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
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from qguide.qnet.engine.kernels import upload
from qguide.qnet.engine.tree_attention import use_block_masks
from qguide.qnet.errors import ConfigError
from qguide.qnet.models.checkpoint import load_policy
from qguide.qnet.models.hub import model_folder
from qguide.qnet.models.manifest import Manifest
from qguide.training.data.runs import RunFolder
from qguide.training.optimization.adapters import hold_frozen
from qguide.training.optimization.objective import Loss
from qguide.training.optimization.packed_replies import PackedReplies
from qguide.training.optimization.trainer import train
from qguide.training.policy_training.examples import read_group_examples
from qguide.training.policy_training.logprobs import ReplyObjective, kept_logprobs, reply_logprobs, validate_choices
from qguide.training.policy_training.options import GroupLossOptions, Normalization, TrainPolicyConfig
from qguide.training.rollouts.models import weights_sha256

_TIED = 1e-9


def advantages(values: Sequence[float], draws: Sequence[int], *, normalization: Normalization = "std") -> list[float]:
    """Advantage of each distinct candidate over the mean draw of its group; 0 if all are equal."""
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


def groups_loss(
    policy_R: Tensor, old_R: Tensor, reference_R: Tensor, packed: PackedReplies, *, options: GroupLossOptions
) -> Loss:
    """Loss of all draws of a packed row, and their number."""
    device = policy_R.device
    replies_R = upload([reply for group in packed.groups for reply in group.places], device)
    draws = [n for group in packed.groups for n in group.choice.draws]
    advantage_R = upload(
        [
            advantage
            for group in packed.groups
            for advantage in advantages(group.choice.values, group.choice.draws, normalization=options.normalization)
        ],
        device,
    )
    own_R, old_R = policy_R[replies_R], upload(old_R, device)[replies_R]
    loss_R = clipped_loss(own_R, old_R, advantage_R, clip=options.clip)
    if options.kl:
        reference_R = upload(reference_R, device)[replies_R]
        loss_R = loss_R + options.kl * divergence(own_R, reference_R)
    return Loss((upload(draws, device) * loss_R).sum(), float(sum(draws)))


def run_train_policy(config: TrainPolicyConfig) -> Manifest:
    """Train and write the policy to `config.output / "checkpoint"`."""
    weights = {
        "policy_sha256": weights_sha256(config.policy),
        "reference_sha256": weights_sha256(config.reference or config.policy),
    }
    for folder in config.groups:
        _require_own_groups(folder, weights["policy_sha256"])
    return train(config, PolicyObjective, weights=weights)


def _require_own_groups(folder: Path, policy_sha256: str) -> None:
    """Refuse groups of another policy, whose draws say nothing of this one's probabilities."""
    drawn_by = RunFolder(folder).read_config()
    if drawn_by.get("policy_sha256") not in (None, "", policy_sha256):
        raise ConfigError(
            f"the groups in {folder} were drawn by {drawn_by['policy']}, which has other weights "
            "than policy; train that policy, or draw groups with this one"
        )


class PolicyObjective(ReplyObjective):
    """Likelier replies by their advantage."""

    def __init__(self, config: TrainPolicyConfig) -> None:
        super().__init__(config, title=f"train-policy {config.name}", data=config.groups)
        self._config = config
        training, self._held_back = read_group_examples(config, self.renderer, **self.limits)
        self.plan(training)

    def precompute(self, device: torch.device) -> None:
        """Log pi of all replies under the policy as it is now, and under the reference."""
        config = self._config
        nn.Module.to(self.model, device)
        self._old = self._reference = kept_logprobs(self.model, self.rows, config.output / "old_logprobs.pt")
        if config.reference is None or not config.kl:
            return
        reference = load_policy(model_folder(config.reference)).model.requires_grad_(False)
        hold_frozen(reference, config.optimization)
        nn.Module.to(reference, device)
        use_block_masks(reference, device)
        kept = config.output / "reference_logprobs.pt"
        self._reference = kept_logprobs(reference, self.rows, kept)

    def row_loss(self, number: int) -> Loss:
        """See `Objective`."""
        row = self.rows[number]
        return groups_loss(
            reply_logprobs(self.model, row), self._old[number], self._reference[number], row, options=self._config
        )

    def validate(self) -> dict[str, float]:
        """See `Objective`."""
        return validate_choices(self.model, self._held_back)
