"""Improve a policy by what came of its own candidates: group-relative optimization (GRPO, GiGPO).

    qguide train-policy --config training/configs/alfworld/train_policy.toml

reads decision groups that the policy drew; writes a policy to which their better candidates are
likelier. It is reinforcement learning on the same data that a QNet is trained on, so the two can be
compared: a better policy, or a Q model beside the old one. For another round, draw groups with the
new policy and name the first one as `reference`.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from qguide.qnet.engine.tree_attention import use_block_masks
from qguide.qnet.errors import ConfigError
from qguide.qnet.models.checkpoint import load_policy, save_checkpoint
from qguide.qnet.models.hub import model_folder
from qguide.qnet.models.manifest import Manifest
from qguide.training.data.runs import RunFolder
from qguide.training.environments.registry import task_markers_of
from qguide.training.licence.assessment import Assessment
from qguide.training.optimization.adapters import hold_frozen
from qguide.training.optimization.best_weights import Criterion
from qguide.training.optimization.objective import Loss, Objective, TrainingConfig
from qguide.training.optimization.options import PolicyOptimization
from qguide.training.optimization.packed_replies import PackedReplies
from qguide.training.optimization.padded_batches import plan_epochs
from qguide.training.optimization.trainer import train
from qguide.training.policy_training.examples import GroupExamples, read_group_examples
from qguide.training.policy_training.group_objective import (
    GroupLossOptions,
    groups_loss,
    validate_choices,
)
from qguide.training.policy_training.logprobs import (
    kept_logprobs,
    prepare_for_packing,
    reply_logprobs,
)
from qguide.training.rollouts.models import weights_sha256


class TrainPolicyConfig(GroupExamples, GroupLossOptions, TrainingConfig):
    """Configuration of `qguide train-policy`, with the fields of its examples and of its loss.

    Attributes:
        policy: folder of the policy to start from, which drew the groups.
        reference: folder of the policy to stay close to; None is `policy`.
        keep: the epoch whose weights are written: the "last", or the one with the highest
            "spearman" or the lowest "regret_steps" on held-back decision groups.
    """

    policy: Path
    reference: Path | None = None
    name: str = "policy"
    keep: Criterion = "last"
    optimization: PolicyOptimization = PolicyOptimization()


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
    path = RunFolder(folder).config
    drawn_by = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if drawn_by.get("policy_sha256") not in (None, "", policy_sha256):
        raise ConfigError(
            f"the groups in {folder} were drawn by {drawn_by['policy']}, which has other weights "
            "than policy; train that policy, or draw groups with this one"
        )


class PolicyObjective(Objective[PreTrainedModel]):
    """Likelier replies by their advantage; see `policy_training.group_objective` for the loss."""

    rows: list[PackedReplies]

    def __init__(self, config: TrainPolicyConfig) -> None:
        self._config = config
        self.title, self.keep = f"train-policy {config.name}", config.keep
        loaded = load_policy(model_folder(config.policy))
        self.model, self._renderer = loaded.model, loaded.renderer
        examples = read_group_examples(
            config,
            self._renderer,
            max_tokens=config.optimization.micro_batch_tokens,
            seed=config.seed,
        )
        self._held_back = examples.held_back
        self.rows, self.epochs = plan_epochs(
            lambda _: examples.training, config.optimization, seed=config.seed, renewed=False
        )

    def prepare(self, device: torch.device) -> None:
        """See `Objective`."""
        prepare_for_packing(self.model, device)

    def precompute(self, device: torch.device) -> None:
        """Log pi of all replies under the policy as it is now, and under the reference."""
        config = self._config
        nn.Module.to(self.model, device)
        self._old = self._reference = kept_logprobs(
            self.model, self.rows, config.output / "old_logprobs.pt"
        )
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
            reply_logprobs(self.model, row),
            self._old[number],
            self._reference[number],
            row,
            options=self._config,
        )

    def validate(self) -> dict[str, float]:
        """See `Objective`."""
        return validate_choices(self.model, self._held_back)

    def save(
        self, model: PreTrainedModel, figures: Mapping[str, float], assessed: Assessment
    ) -> Manifest:
        """See `Objective`."""
        config = self._config
        manifest = config.manifest(
            kind="policy",
            trunk=config.policy,
            data=config.groups,
            metrics=figures,
            task_markers=task_markers_of(config.environment),
        )
        return save_checkpoint(
            config.output / "checkpoint",
            model=model,
            tokenizer=self._renderer.tokenizer,
            manifest=manifest,
        )
