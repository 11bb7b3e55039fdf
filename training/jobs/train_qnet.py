"""Regress a QNet on labelled exploration trees (QLASS, equation 11 and appendix A.2.2).

    qguide train-qnet --config training/configs/alfworld/train_qnet.toml

reads label rows, writes a QNet checkpoint. Before any episode is played, `sibling_accuracy` on
held-back tasks says whether the net can rank the actions that an agent chooses among: the share of
sibling pairs with different labels that Q puts in the right order (a tie counts half).
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from qnet.checkpoint import Manifest, load_renderer, save_checkpoint, sha256_of
from qnet.errors import ConfigError
from qnet.model import PAPER_HEAD_WIDTH, QNet
from qnet.rendering import Renderer
from training.algorithms.regression import LossOn
from training.artefacts import RunFolder, open_run, read_rows, sha256_of_rows
from training.augmentation import Augmentation, Augmenter, build_augmenter
from training.batching import pad_column, pad_ids, plan_steps
from training.loop import Loop, Loss, Optimization
from training.records import LabelRow, messages_of, rows_of
from training.tree_batches import Pair, Place, TreeBatch, build_tree_batch

TreeRows = Sequence[LabelRow]
"""The paths of one tree."""


class TrainQNetConfig(BaseModel):
    """What `qguide train-qnet` reads.

    Attributes:
        labels: run folders of `label`.
        trunk: the SFT policy's folder.
        loss_on: the positions that carry the label; `all` is the paper's.
        ranking_weight: weight of -log sigmoid((Q(s, a) - Q(s, a')) / ranking_scale) over sibling
            pairs with q(a) > q(a'); ours, 0 is the paper.
        min_gap: siblings whose labels differ by less are no pair.
        flat_trees: train on trees whose labels are all equal too, as the paper does; without
            them (ours) a policy that mostly fails does not drown the contrast in zeros.
        validation_fraction: share of tasks held back for `sibling_accuracy`.
        augmentation: consistent renamings per tree and epoch, drawn anew each time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: tuple[Path, ...]
    trunk: Path
    output: Path
    name: str = "qnet"
    environment: str = ""
    freeze_trunk: bool = False
    head_width: int = Field(default=PAPER_HEAD_WIDTH, ge=1)
    loss_on: LossOn = "all"
    ranking_weight: float = Field(default=0.0, ge=0)
    ranking_scale: float = Field(default=0.1, gt=0)
    min_gap: float = Field(default=0.02, gt=0)
    flat_trees: bool = True
    optimization: Optimization = Optimization(epochs=2)
    max_length: int = Field(default=4096, ge=32)
    validation_fraction: float = Field(default=0.05, ge=0, lt=1)
    augmentation: Augmentation = Augmentation()
    seed: int = 0


def run_train_qnet(config: TrainQNetConfig) -> Manifest:
    """Train and write the QNet checkpoint to `config.output / "checkpoint"`."""
    run = open_run(config.output, config)
    torch.manual_seed(config.seed)
    renderer = load_renderer(config.trunk)
    training_rows, held_back_rows = _read_trees(config)
    held_back = [tree for rows in held_back_rows if (tree := _batch(config, renderer, rows)).rows]
    training, epoch_steps = _plan(config, renderer, training_rows)
    qnet = QNet.from_trunk(config.trunk, head_width=config.head_width)
    qnet.trunk.requires_grad_(not config.freeze_trunk)
    loop = Loop(qnet, config.optimization, output=run.path)
    loop.run(
        [step for epoch in epoch_steps for step in epoch],
        lambda indices: _loss_of_trees(qnet, [training[i] for i in indices], config),
        name=f"train-qnet {config.name}",
        on_epoch=lambda epoch: _validate(qnet, held_back),
        steps_per_epoch=len(epoch_steps[0]),
    )
    manifest = _manifest(config, training, metrics=_validate(qnet, held_back))
    return save_checkpoint(
        config.output / "checkpoint", model=qnet, tokenizer=renderer.tokenizer, manifest=manifest
    )


def qnet_loss(qnet: QNet, batch: TreeBatch, config: TrainQNetConfig) -> Loss:
    """Weighted squared error on every labelled position, plus the sibling ranking term."""
    q_BT = qnet(pad_ids(batch.rows))
    weight_BT = pad_column(batch.rows, "weight")
    target_BT = pad_column(batch.rows, "target")
    total = (weight_BT * (q_BT - target_BT) ** 2).sum()
    if config.ranking_weight and batch.pairs:
        margin_P = _margins(q_BT, batch.pairs)
        ranking = -torch.nn.functional.logsigmoid(margin_P / config.ranking_scale)
        total = total + config.ranking_weight * ranking.sum()
    return Loss(total, float(weight_BT.sum()))


@torch.no_grad()
def sibling_accuracy(qnet: QNet, trees: Sequence[TreeBatch]) -> float:
    """Share of sibling pairs that Q puts in the right order; nan where there are none."""
    right, pairs = 0.0, 0
    for tree in trees:
        if tree.pairs:
            margin_P = _margins(qnet(pad_ids(tree.rows)), tree.pairs)
            right += float((margin_P > 0).sum()) + 0.5 * float((margin_P == 0).sum())
            pairs += len(tree.pairs)
    return right / pairs if pairs else float("nan")


def _margins(q_BT: Tensor, pairs: Sequence[Pair]) -> Tensor:
    return _read(q_BT, [a for a, _ in pairs]) - _read(q_BT, [b for _, b in pairs])


def _read(q_BT: Tensor, places: Sequence[Place]) -> Tensor:
    rows = torch.tensor([place.row for place in places])
    positions = torch.tensor([place.position for place in places])
    return q_BT[rows, positions]


def _loss_of_trees(qnet: QNet, trees: Sequence[TreeBatch], config: TrainQNetConfig) -> Loss:
    parts = [qnet_loss(qnet, tree, config) for tree in trees]
    total = torch.stack([part.total for part in parts]).sum()
    return Loss(total, sum(part.weight for part in parts))


def _validate(qnet: QNet, held_back: Sequence[TreeBatch]) -> dict[str, float]:
    qnet.eval()
    pairs = sum(len(tree.pairs) for tree in held_back)
    if not pairs:
        return {}
    return {"sibling_accuracy": sibling_accuracy(qnet, held_back), "sibling_pairs": pairs}


def _read_trees(config: TrainQNetConfig) -> tuple[list[TreeRows], list[TreeRows]]:
    """Training trees and held-back trees, disjoint by task."""
    rows: dict[tuple[str, Path], list[LabelRow]] = defaultdict(list)
    for folder in config.labels:
        for row in read_rows(RunFolder(folder).rows, LabelRow):
            rows[row.task_id, folder].append(row)
    if not rows:
        raise ConfigError(f"no labels in {config.labels}; run `qguide label` first")
    task_ids = sorted({task_id for task_id, _ in rows})
    random.Random(config.seed).shuffle(task_ids)
    held_back_ids = set(task_ids[: round(len(task_ids) * config.validation_fraction)])
    training: list[TreeRows] = []
    held_back: list[TreeRows] = []
    for (task_id, _), paths in sorted(rows.items()):
        if config.flat_trees or not _is_flat(paths):
            (held_back if task_id in held_back_ids else training).append(paths)
    return training, held_back


def _batch(config: TrainQNetConfig, renderer: Renderer, paths: TreeRows) -> TreeBatch:
    return build_tree_batch(
        renderer,
        paths,
        loss_on=config.loss_on,
        min_gap=config.min_gap,
        max_length=config.max_length,
    )


def _is_flat(paths: Sequence[LabelRow]) -> bool:
    return len({q for path in paths for q in path.q_values if q is not None}) < 2


def _plan(
    config: TrainQNetConfig, renderer: Renderer, trees: Sequence[TreeRows]
) -> tuple[list[TreeBatch], list[list[list[list[int]]]]]:
    """Every epoch's trees (renamed anew) and, epoch by epoch, the steps over them."""
    rng = random.Random(config.seed)
    augment = build_augmenter(config.augmentation)
    batches: list[TreeBatch] = []
    epochs: list[list[list[list[int]]]] = []
    for _ in range(config.optimization.epochs):
        first = len(batches)
        renamed = (rename_tree(paths, augment, rng) for paths in trees)
        batches += [tree for paths in renamed if (tree := _batch(config, renderer, paths)).rows]
        epoch = plan_steps(
            [tree.padded_tokens for tree in batches[first:]],
            batch_tokens=config.optimization.batch_tokens,
            micro_batch_tokens=config.optimization.micro_batch_tokens,
            rng=rng,
        )
        epochs.append([[[first + i for i in micro] for micro in step] for step in epoch])
    return batches, epochs


def rename_tree(paths: TreeRows, augment: Augmenter, rng: random.Random) -> TreeRows:
    """The paths of one tree, all under the same new names."""
    messages = iter(augment([m for row in paths for m in messages_of(row.messages)], rng))
    return [
        row.model_copy(update={"messages": rows_of(islice(messages, len(row.messages)))})
        for row in paths
    ]


def _manifest(
    config: TrainQNetConfig, trees: Sequence[TreeBatch], *, metrics: dict[str, float]
) -> Manifest:
    labels = [t for tree in trees for row in tree.rows for t in row.columns["target"]]
    weights = config.trunk / "model.safetensors"
    target: Literal["q", "avg", "reward"] = "q"
    for row in read_rows(RunFolder(config.labels[0]).rows, LabelRow):
        target = row.target
        break
    return Manifest(
        kind="qnet",
        name=config.name,
        environment=config.environment,
        read_at="last_token",
        target=target,
        label_range=(min(labels), max(labels)),
        trunk_sha256=sha256_of(weights) if weights.is_file() else "",
        data_sha256=sha256_of_rows(config.labels),
        metrics=metrics,
    )
