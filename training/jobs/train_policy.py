"""Improve a policy by what came of its own candidates: group-relative optimization (GRPO, GiGPO).

    qguide train-policy --config training/configs/alfworld/train_policy.toml

reads decision groups that the policy drew; writes the policy that finds their better candidates
likelier. It is reinforcement learning on the same data that a QNet is trained on, so the two can be
compared: a better policy, or a Q model beside the old one. For another round, draw groups with the
new policy and name the first one as `reference`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from qguide.qnet.engine.tree_attention import use_block_masks
from qguide.qnet.errors import ConfigError
from qguide.qnet.models.checkpoint import load_policy, save_checkpoint
from qguide.qnet.models.hub import hub_name, model_folder
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.rendering.renderer import Renderer
from qguide.training.data.runs import RunFolder, open_run, sha256_of_rows
from qguide.training.environments.registry import task_markers_of
from qguide.training.optimization.adapters import hold_frozen, merged_lora
from qguide.training.optimization.best_weights import BestWeights, Criterion
from qguide.training.optimization.launch import in_processes
from qguide.training.optimization.options import PolicyOptimization
from qguide.training.optimization.packed_replies import PackedReplies
from qguide.training.optimization.trainer import Loop, Loss, Training
from qguide.training.policy_training.examples import (
    GroupExamples,
    PackedGroups,
    read_group_examples,
)
from qguide.training.policy_training.group_objective import (
    GroupObjective,
    groups_loss,
    validate_choices,
)
from qguide.training.policy_training.logprobs import (
    kept_logprobs,
    plan_epochs,
    prepare_for_packing,
    reply_logprobs,
)
from qguide.training.rollouts.models import weights_sha256


class TrainPolicyConfig(GroupExamples, GroupObjective):
    """Configuration of `qguide train-policy`, with the fields of its examples and objective.

    Attributes:
        policy: folder of the policy to start from, which drew the groups.
        reference: folder of the policy to stay close to; None is `policy`.
        keep: the epoch whose weights are written: the "last", or the one with the highest
            "spearman" or the lowest "regret_steps" on held-back decision groups.
        optimization: options of the optimizer and the batches.
    """

    policy: Path
    reference: Path | None = None
    output: Path
    name: str = "policy"
    environment: str = ""
    keep: Criterion = "last"
    optimization: PolicyOptimization = PolicyOptimization()
    seed: int = 0


def run_train_policy(config: TrainPolicyConfig) -> Manifest:
    """Train and write the policy to `config.output / "checkpoint"`."""
    weights = {
        "policy_sha256": weights_sha256(config.policy),
        "reference_sha256": weights_sha256(config.reference or config.policy),
    }
    for folder in config.groups:
        _require_own_groups(folder, weights["policy_sha256"])
    with open_run(config.output, config, weights=weights) as run:
        return _train(config, run)


def _require_own_groups(folder: Path, policy_sha256: str) -> None:
    """Refuse groups of another policy, whose draws say nothing of this one's probabilities."""
    path = RunFolder(folder).config
    drawn_by = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if drawn_by.get("policy_sha256") not in (None, "", policy_sha256):
        raise ConfigError(
            f"the groups in {folder} were drawn by {drawn_by['policy']}, which has other weights "
            "than policy; train that policy, or draw groups with this one"
        )


def _train(config: TrainPolicyConfig, run: RunFolder) -> Manifest:
    torch.manual_seed(config.seed)
    loaded = load_policy(model_folder(config.policy))
    renderer: Renderer = loaded.renderer
    examples = read_group_examples(
        config, renderer, max_tokens=config.optimization.micro_batch_tokens, seed=config.seed
    )

    def fit() -> Manifest:
        loop, figures = _optimize(config, run, loaded.model, examples)
        return loop.write(lambda policy: _save(config, policy, renderer, figures))

    return in_processes(config.optimization, fit)


@dataclass(frozen=True, slots=True)
class _Logprobs:
    """Log pi of the replies of each packed row before the training."""

    old: Sequence[Tensor]
    reference: Sequence[Tensor]


def _optimize(
    config: TrainPolicyConfig, run: RunFolder, policy: PreTrainedModel, examples: PackedGroups
) -> tuple[Loop[PreTrainedModel], dict[str, float]]:
    """Train the policy; the loop with the weights to keep, and their validation figures."""
    best = BestWeights(run.path, config.keep)
    loop = Loop(policy, config.optimization, output=run.path, best=best)
    prepare_for_packing(policy, loop.device)
    with loop.main_process_first(), loop.autocast():
        before = _before(config, run, policy, examples.training, loop.device)
    figures: dict[str, float] = {}

    def figures_now() -> dict[str, float]:
        return validate_choices(policy, examples.held_back)

    def on_epoch(_: int) -> dict[str, float]:
        figures.update(figures_now())
        return dict(figures)

    epochs = plan_epochs(examples.training, config.optimization, seed=config.seed)
    loop.run(
        Training(
            f"train-policy {config.name}",
            [step for epoch in epochs for step in epoch],
            loss=partial(_loss, config, policy, examples.training, before),
            size=lambda indices: sum(len(examples.training[i]) for i in indices),
            validate=on_epoch,
            steps_per_epoch=len(epochs[0]),
        )
    )
    if loop.restore_best():
        return loop, best.figures
    # A run that had ended before has seen no epoch now.
    return loop, figures or loop.evaluate(figures_now)


def _before(
    config: TrainPolicyConfig,
    run: RunFolder,
    policy: PreTrainedModel,
    trees: Sequence[PackedReplies],
    device: torch.device,
) -> _Logprobs:
    nn.Module.to(policy, device)
    old = kept_logprobs(policy, trees, run.path / "old_logprobs.pt")
    if config.reference is None or not config.kl:
        return _Logprobs(old, old)
    reference = load_policy(model_folder(config.reference)).model.requires_grad_(False)
    hold_frozen(reference, config.optimization)
    nn.Module.to(reference, device)
    use_block_masks(reference, device)
    return _Logprobs(old, kept_logprobs(reference, trees, run.path / "reference_logprobs.pt"))


def _loss(
    config: TrainPolicyConfig,
    policy: PreTrainedModel,
    trees: Sequence[PackedReplies],
    before: _Logprobs,
    indices: Sequence[int],
) -> Loss:
    parts = [
        groups_loss(
            reply_logprobs(policy, trees[i]),
            before.old[i],
            before.reference[i],
            trees[i],
            objective=config,
        )
        for i in indices
    ]
    total: Tensor = torch.stack([part.total for part in parts]).sum()
    return Loss(total, sum(part.weight for part in parts))


def _save(
    config: TrainPolicyConfig,
    policy: PreTrainedModel,
    renderer: Renderer,
    figures: dict[str, float],
) -> Manifest:
    manifest = Manifest(
        kind="policy",
        name=config.name,
        environment=config.environment,
        task_markers=task_markers_of(config.environment),
        trunk=hub_name(config.policy),
        data_sha256=sha256_of_rows(config.groups),
        lora=merged_lora(config.optimization.lora),
        metrics=figures,
    )
    return save_checkpoint(
        config.output / "checkpoint", model=policy, tokenizer=renderer.tokenizer, manifest=manifest
    )
