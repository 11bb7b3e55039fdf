"""Fit a QNet to labelled exploration trees and to decision groups (QLASS, equation 11).

    qguide train-qnet --config training/configs/alfworld/train_qnet.toml

reads rows of `label`, of `groups`, or both; writes a QNet checkpoint. Held-back tasks show, before
any episode is played, whether the net ranks the actions between which an agent chooses:
`sibling_accuracy` over pairs in trees, and the figures of `choice_quality` over decision groups.
On held-back decision groups the manifest's `prior` is fitted, beside which the server chooses, and
its `licence` is measured, without which the server does not take it. Its domain is that of the
states that were trained on.
"""

import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Self

import torch
from pydantic import Field, model_validator

from qguide.qnet.engine.tree_attention import use_block_masks
from qguide.qnet.errors import ConfigError
from qguide.qnet.models.checkpoint import save_checkpoint
from qguide.qnet.models.hub import hub_name, model_folder
from qguide.qnet.models.loading import load_renderer
from qguide.qnet.models.manifest import Manifest, sha256_of
from qguide.qnet.models.match_features import HeadFeatures
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.qnet_config import DEFAULT_RANGE, PAPER_HEAD_WIDTH, HeadKind
from qguide.training.data.records import LabelRow
from qguide.training.data.runs import RunFolder, open_run, read_rows, sha256_of_rows
from qguide.training.licence.domain import fit_domain, salt_of
from qguide.training.optimization.adapters import merged_lora
from qguide.training.optimization.best_weights import BestWeights, Criterion
from qguide.training.optimization.launch import in_processes
from qguide.training.optimization.options import QNetOptimization
from qguide.training.optimization.packed_trees import PackedTree
from qguide.training.optimization.padded_batches import plan_steps
from qguide.training.optimization.trainer import Loop, Training
from qguide.training.q_training.examples import Examples, Packing, Rows, read_examples, states_of
from qguide.training.q_training.judgement import Judgement, judge
from qguide.training.q_training.losses import loss_of, output_embeddings, require_range
from qguide.training.q_training.objective import Objective
from qguide.training.q_training.validation import require_packable, scored_choices, validate
from qguide.training.rollouts.models import weights_sha256

EpochSteps = list[list[list[int]]]
"""Training steps of one epoch: indices of trees, by micro-batch."""


class TrainQNetConfig(Examples, Objective):
    """Configuration of `qguide train-qnet`, with the fields of `Examples` and `Objective`.

    Attributes:
        trunk: the SFT policy's folder.
        head: "mlp" is the paper's value head. "linear" is one layer, so that `qguide export-model`
            can write the Q model as a Hugging Face sequence classifier with one label.
        head_width: width of the hidden layers of an "mlp".
        head_features: "match-1" lets the value head read where a candidate's tokens occurred
            before (`qguide.qnet.models.match_features`); "none" is the paper's head.
        head_bins: 0 regresses Q, as in the paper. Otherwise Q is the mean of a distribution over
            so many bins, trained by classification (HL-Gauss; 51 is a start).
        head_range: lowest and highest edge of the bins.
        keep: the epoch whose weights are written: the "last", or the one with the highest
            "spearman" or the lowest "regret_steps" on held-back decision groups.
        optimization: options of the optimiser and the batches.
    """

    trunk: Path
    output: Path
    name: str = "qnet"
    environment: str = ""
    freeze_trunk: bool = False
    head: HeadKind = "mlp"
    head_width: int = Field(default=PAPER_HEAD_WIDTH, ge=1)
    head_features: HeadFeatures = "none"
    head_bins: int = Field(default=0, ge=0)
    head_range: tuple[float, float] = DEFAULT_RANGE
    keep: Criterion = "last"
    optimization: QNetOptimization = QNetOptimization()
    seed: int = 0

    @model_validator(mode="after")
    def _one_place_has_the_label(self) -> Self:
        for name, default in (("head_features", "none"), ("read_at", "action")):
            if getattr(self, name) != default and self.loss_on != "last":
                raise ValueError(
                    f"loss_on is {self.loss_on!r}, but with {name} = {getattr(self, name)!r} only "
                    "one token of an action has the label; set loss_on to 'last'"
                )
        return self

    @model_validator(mode="after")
    def _a_trunk_with_adapters_is_trained(self) -> Self:
        if self.optimization.lora and self.freeze_trunk:
            raise ValueError(
                f"optimization.lora has rank {self.optimization.lora.rank}, which trains the trunk "
                "by adapters, but freeze_trunk is true; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _bins_have_a_range(self) -> Self:
        low, high = self.head_range
        if self.head_bins == 1 or not low < high:
            raise ValueError(
                f"head_bins is {self.head_bins} and head_range {low:g} to {high:g}; set head_bins "
                "to 0, or to 2 or more with a range whose first edge is the lower one"
            )
        return self

    @model_validator(mode="after")
    def _linear_heads_are_plain(self) -> Self:
        if self.head == "linear" and (self.head_features != "none" or self.head_bins):
            raise ValueError(
                f"head is 'linear', but head_features is {self.head_features!r} and head_bins "
                f"{self.head_bins}; set them to 'none' and 0, or head to 'mlp'"
            )
        return self

    @model_validator(mode="after")
    def _world_models_are_trained(self) -> Self:
        if self.models_world and self.freeze_trunk:
            raise ValueError(
                f"observation_weight is {self.observation_weight} and outcome_weight "
                f"{self.outcome_weight}, which train the trunk, but freeze_trunk is true; set both "
                "to 0, or freeze_trunk to false"
            )
        if self.outcome_weight and self.read_at == "observation":
            raise ValueError(
                f"outcome_weight is {self.outcome_weight}, which predicts the observation where Q "
                "is read, but read_at is 'observation', which is after it; set outcome_weight to 0"
            )
        return self


def run_train_qnet(config: TrainQNetConfig) -> Manifest:
    """Train and write the QNet checkpoint to `config.output / "checkpoint"`."""
    weights = {"trunk_sha256": weights_sha256(config.trunk)}
    with open_run(config.output, config, weights=weights) as run:
        return _train(config, run)


def _train(config: TrainQNetConfig, run: RunFolder) -> Manifest:
    torch.manual_seed(config.seed)
    config = config.model_copy(update={"trunk": model_folder(config.trunk)})
    packing = Packing(
        load_renderer(config.trunk),
        config,
        max_tokens=config.optimization.micro_batch_tokens,
        with_features=config.head_features != "none",
        with_answers=config.models_world,
    )
    rows, held_back_rows = read_examples(config, seed=config.seed)
    held_back = packing.trees(held_back_rows), packing.groups(held_back_rows)
    training, epoch_steps = _plan(config, packing, rows)
    qnet = _build_qnet(config)
    if config.head_bins:
        require_range(training, config.head_range)

    def fit() -> Manifest:
        loop, figures = _fit(qnet, config, training, epoch_steps, held_back, run)
        judged = loop.evaluate(lambda: judge(scored_choices(qnet, held_back[1])))
        manifest = _manifest(config, training, metrics=figures, judged=judged)
        return loop.write(
            lambda whole: save_checkpoint(
                config.output / "checkpoint",
                model=whole,
                tokenizer=packing.renderer.tokenizer,
                manifest=manifest,
                domain=fit_domain(states_of(rows), salt=salt_of(manifest)),
            )
        )

    return in_processes(config.optimization, fit)


def _fit(
    qnet: QNet,
    config: TrainQNetConfig,
    trees: Sequence[PackedTree],
    epoch_steps: Sequence[EpochSteps],
    held_back: tuple[list[PackedTree], list[PackedTree]],
    run: RunFolder,
) -> tuple[Loop[QNet], dict[str, float]]:
    """Train the net; the loop with the weights to keep, and their validation figures."""
    best = BestWeights(run.path, config.keep)
    loop = Loop(qnet, config.optimization, output=run.path, best=best)
    use_block_masks(qnet.trunk, qnet.device)
    require_packable(qnet)
    use_block_masks(qnet.trunk, loop.device)  # where FSDP moves the net in `run`
    models_world = config.models_world
    logits = output_embeddings(config.trunk, qnet, loop.device) if models_world else None
    loop.run(
        Training(
            f"train-qnet {config.name}",
            [step for epoch in epoch_steps for step in epoch],
            loss=lambda indices: loss_of(qnet, [trees[i] for i in indices], config, logits),
            size=lambda indices: sum(len(trees[i]) for i in indices),
            validate=lambda _: validate(qnet, *held_back),
            steps_per_epoch=len(epoch_steps[0]),
        )
    )
    if loop.restore_best():
        return loop, best.figures
    return loop, loop.evaluate(lambda: validate(qnet, *held_back))


def _build_qnet(config: TrainQNetConfig) -> QNet:
    qnet = QNet.from_trunk(
        config.trunk,
        head=config.head,
        head_width=config.head_width,
        head_features=config.head_features,
        head_bins=config.head_bins,
        head_range=config.head_range,
    )
    qnet.trunk.requires_grad_(not config.freeze_trunk)
    return qnet


def _plan(
    config: TrainQNetConfig, packing: Packing, rows: Rows
) -> tuple[list[PackedTree], list[EpochSteps]]:
    """The trees of all epochs, renamed anew in each, and each epoch's training steps over them."""
    rng = random.Random(config.seed)
    trees: list[PackedTree] = []
    epochs: list[EpochSteps] = []
    first = 0
    for epoch in range(config.optimization.epochs):
        if epoch == 0 or packing.is_renamed_each_epoch:
            first = len(trees)
            trees += packing.epoch(rows, rng)
        steps = plan_steps(
            [len(tree) for tree in trees[first:]],
            batch_tokens=config.optimization.batch_tokens,
            micro_batch_tokens=config.optimization.micro_batch_tokens,
            rng=rng,
        )
        epochs.append([[[first + i for i in micro] for micro in step] for step in steps])
    if not trees:
        raise ConfigError(
            f"nothing in {', '.join(map(str, (*config.labels, *config.groups)))} is left to train "
            "on: actions of one state have to differ in value (constant_trees, min_label_margin), "
            "and fit max_length; explore more tasks, or lower validation_fraction"
        )
    return trees, epochs


def _manifest(
    config: TrainQNetConfig,
    trees: Sequence[PackedTree],
    *,
    metrics: dict[str, float],
    judged: Judgement,
) -> Manifest:
    labels = [t for tree in trees for t, w in zip(tree.target, tree.weight, strict=True) if w]
    weights = config.trunk / "model.safetensors"
    return Manifest(
        kind="qnet",
        name=config.name,
        environment=config.environment,
        read_at="observation" if config.read_at == "observation" else "last_token",
        target=_target(config),
        label_range=(min(labels), max(labels)),
        trunk=hub_name(config.trunk),
        trunk_sha256=sha256_of(weights) if weights.is_file() else "",
        data_sha256=sha256_of_rows([*config.labels, *config.groups]),
        lora=merged_lora(config.optimization.lora),
        metrics=metrics,
        prior=judged.prior,
        licence=judged.licence,
    )


def _target(config: TrainQNetConfig) -> str:
    """Names of the methods by which the labels of trees and groups were computed."""
    targets: list[str] = []
    for folder in config.labels[:1]:
        rows = read_rows(RunFolder(folder).rows, LabelRow)
        targets += [row.target for row in islice(rows, 1)]
    if config.groups:
        targets.append(f"groups-{config.group_labels.scale}")
    return "+".join(targets)
