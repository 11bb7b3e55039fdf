"""Fit a policy to preference pairs, and write it with its reference as an implicit Q (StepQ).

    qguide train-dpo --config training/configs/alfworld/train_dpo.toml

reads rows of `pairs`, `rro` or `ipr`; writes an implicit-q checkpoint, which the server, `evaluate`
and `choice-regret` accept instead of a QNet. Pairs of actions give step-level DPO (equation 8),
pairs of episodes trajectory-level DPO (equation 7). Pairs of `ipr` with `mixture = "levels"` and
`weights.sft` give the loss of IPR (its equation 10).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from qguide.qnet.engine.tree_attention import use_block_masks
from qguide.qnet.errors import ConfigError
from qguide.qnet.models.checkpoint import save_checkpoint
from qguide.qnet.models.hub import hub_name, model_folder
from qguide.qnet.models.implicit_q import ImplicitQ
from qguide.qnet.models.loading import load_renderer
from qguide.qnet.models.manifest import Manifest, sha256_of
from qguide.qnet.rendering.renderer import Renderer
from qguide.training.data.runs import RunFolder, open_run, sha256_of_rows
from qguide.training.environments.registry import task_markers_of
from qguide.training.licence.domain import fit_domain, salt_of
from qguide.training.optimization.adapters import hold_frozen, merged_lora
from qguide.training.optimization.best_weights import BestWeights, Criterion
from qguide.training.optimization.launch import in_processes
from qguide.training.optimization.options import DpoOptimization
from qguide.training.optimization.trainer import Loop, Loss, Training
from qguide.training.policy_training.examples import (
    PackedExamples,
    PairExamples,
    read_pair_examples,
    states_of_pairs,
)
from qguide.training.policy_training.logprobs import (
    kept_logprobs,
    plan_epochs,
    prepare_for_packing,
    reply_logprobs,
)
from qguide.training.policy_training.objective import DpoObjective, PairWeights, pairs_loss
from qguide.training.policy_training.validation import Referenced, scored_choices, validate
from qguide.training.q_training.judgement import Judgement, judge
from qguide.training.rollouts.models import weights_sha256


class TrainDpoConfig(PairExamples, DpoObjective):
    """Configuration of `qguide train-dpo`, with the fields of `PairExamples` and `DpoObjective`.

    Attributes:
        policy: folder of the policy to start from.
        reference: folder of the reference policy; None is `policy`.
        write_policy: also write the trained policy by itself, to `policy` beside `checkpoint`, as
            the agent of the next iteration.
        keep: the epoch whose weights are written: the "last", or the one with the highest
            "spearman" or the lowest "regret_steps" on held-back decision groups.
        optimization: options of the optimiser and the batches. StepQ has batches of 16 pairs; here
            batches are counted in distinct tokens.
    """

    policy: Path
    reference: Path | None = None
    output: Path
    name: str = "implicit-q"
    environment: str = ""
    write_policy: bool = False
    keep: Criterion = "last"
    optimization: DpoOptimization = DpoOptimization()
    seed: int = 0


def run_train_dpo(config: TrainDpoConfig) -> Manifest:
    """Train and write the implicit-q checkpoint to `config.output / "checkpoint"`."""
    weights = {
        "policy_sha256": weights_sha256(config.policy),
        "reference_sha256": weights_sha256(config.reference or config.policy),
    }
    with open_run(config.output, config, weights=weights) as run:
        return _train(config, run)


@dataclass(frozen=True, slots=True)
class _Data:
    """All packed rows with log pi of their replies under the reference."""

    training: Referenced
    held_back: Referenced
    others: Referenced
    groups: Referenced

    @classmethod
    def of(cls, examples: PackedExamples, reference: PreTrainedModel, run: RunFolder) -> Self:
        parts = (examples.training, examples.held_back, examples.others, examples.groups)
        trees = [tree for part in parts for tree in part]
        logprobs = iter(kept_logprobs(reference, trees, run.path / "reference_logprobs.pt"))
        return cls(*(Referenced(part, [next(logprobs) for _ in part]) for part in parts))


def _train(config: TrainDpoConfig, run: RunFolder) -> Manifest:
    torch.manual_seed(config.seed)
    local = {"policy": model_folder(config.policy)}
    if config.reference:
        local["reference"] = model_folder(config.reference)
    config = config.model_copy(update=local)
    renderer = load_renderer(config.policy)
    examples = read_pair_examples(
        config, renderer, max_tokens=config.optimization.micro_batch_tokens, seed=config.seed
    )
    if not examples.training:
        raise ConfigError(
            f"no pair in {', '.join(map(str, config.pairs))} has at most {config.max_length} "
            "tokens; raise max_length"
        )
    model = ImplicitQ.from_policies(
        config.policy, config.reference or config.policy, beta=config.beta
    )
    model.reference.requires_grad_(False)

    def fit() -> Manifest:
        loop, figures, judged = _optimize(config, run, model, examples)
        return loop.write(lambda policy: _save(config, model, policy, renderer, figures, judged))

    return in_processes(config.optimization, fit)


def _optimize(
    config: TrainDpoConfig, run: RunFolder, model: ImplicitQ, examples: PackedExamples
) -> tuple[Loop[PreTrainedModel], dict[str, float], Judgement]:
    """Train the policy; the loop with the weights to keep, their figures and judgement."""
    policy = model.policy
    best = BestWeights(run.path, config.keep)
    loop = _packed_loop(config, run, model, best)
    # Log pi of the policy and of its reference are compared, so their precision is the same. The
    # main process writes the file that the others read.
    with loop.main_process_first(), loop.autocast():
        data = _Data.of(examples, model.reference.to(loop.device), run)
    model.reference.to("cpu")
    of_last_epoch: dict[str, float] = {}

    def figures_now() -> dict[str, float]:
        return validate(
            policy,
            pairs=data.held_back,
            other_pairs=data.others,
            groups=data.groups,
            beta=config.beta,
        )

    def on_epoch(_: int) -> dict[str, float]:
        of_last_epoch.update(figures_now())
        return dict(of_last_epoch)

    epochs = plan_epochs(data.training.trees, config.optimization, seed=config.seed)
    weights = PairWeights.of(config, data.training.trees)
    loop.run(
        Training(
            f"train-dpo {config.name}",
            [step for epoch in epochs for step in epoch],
            loss=lambda indices: _loss(
                policy, data.training, indices, weights=weights, beta=config.beta
            ),
            size=lambda indices: sum(len(data.training.trees[i]) for i in indices),
            validate=on_epoch,
            steps_per_epoch=len(epochs[0]),
        )
    )
    # A run that had ended before has seen no epoch now.
    figures = best.figures if loop.restore_best() else of_last_epoch or loop.evaluate(figures_now)
    judged = loop.evaluate(lambda: judge(scored_choices(policy, data.groups, beta=config.beta)))
    return loop, figures, judged


def _packed_loop(
    config: TrainDpoConfig, run: RunFolder, model: ImplicitQ, best: BestWeights
) -> Loop[PreTrainedModel]:
    """The loop of the policy, with both models ready for packed rows on its device."""
    policy = model.policy
    loop = Loop(policy, config.optimization, output=run.path, best=best)
    hold_frozen(model.reference, config.optimization)  # rounded like the policy beside its adapters
    use_block_masks(model.reference, loop.device)
    prepare_for_packing(policy, loop.device)
    return loop


def _loss(
    policy: PreTrainedModel,
    data: Referenced,
    indices: Sequence[int],
    *,
    weights: PairWeights,
    beta: float,
) -> Loss:
    parts = [
        pairs_loss(
            reply_logprobs(policy, data.trees[i]),
            data.reference[i],
            data.trees[i],
            weights=weights,
            beta=beta,
        )
        for i in indices
    ]
    total: Tensor = torch.stack([part.total for part in parts]).sum()
    return Loss(total, sum(part.weight for part in parts))


def _save(
    config: TrainDpoConfig,
    model: ImplicitQ,
    policy: PreTrainedModel,
    renderer: Renderer,
    figures: dict[str, float],
    judged: Judgement,
) -> Manifest:
    model.policy = policy
    model.reference.float()
    weights = config.policy / "model.safetensors"
    manifest = Manifest(
        kind="implicit-q",
        name=config.name,
        environment=config.environment,
        task_markers=task_markers_of(config.environment),
        read_at="action_tokens",
        target="dpo",
        trunk=hub_name(config.policy),
        trunk_sha256=sha256_of(weights) if weights.is_file() else "",
        data_sha256=sha256_of_rows(config.pairs),
        lora=merged_lora(config.optimization.lora),
        metrics=figures,
        prior=judged.prior,
        licence=judged.licence,
    )
    if config.write_policy:
        save_checkpoint(
            config.output / "policy",
            model=model.policy,
            tokenizer=renderer.tokenizer,
            manifest=manifest.model_copy(
                update={
                    "kind": "policy",
                    "read_at": "",
                    "target": "",
                    "prior": None,
                    "licence": None,
                }
            ),
        )
    return save_checkpoint(
        config.output / "checkpoint",
        model=model,
        tokenizer=renderer.tokenizer,
        manifest=manifest,
        domain=fit_domain(states_of_pairs(config), salt=salt_of(manifest)),
    )
