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

from qnet.errors import ConfigError
from qnet.models.checkpoint import Manifest, load_renderer, save_checkpoint, sha256_of
from qnet.models.qnet import PAPER_HEAD_WIDTH, QNet
from qnet.rendering.renderer import Renderer
from training.algorithms.regression import LossOn
from training.data.augmentation import Augmentation, Augmenter, build_augmenter
from training.data.records import LabelRow, messages_of, rows_of
from training.data.runs import RunFolder, open_run, read_rows, sha256_of_rows
from training.optimization.packed_trees import (
    PackedTree,
    Pair,
    pack_tree,
    without_unbranched_suffixes,
)
from training.optimization.padded_batches import plan_steps
from training.optimization.trainer import Loop, Loss, Optimization

_PACKING_TOLERANCE = 1e-4

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
        ranking: "order" counts every pair alike, so that Q learns which action is better more
            often; "regret" counts it (q(a) - q(a')) / ranking_scale times: better on the whole.
        min_label_margin: siblings whose labels differ by less are no pair.
        constant_trees: train on trees whose labels are all equal too, as the paper does; without
            them (ours) a policy that mostly fails does not drown the contrast in zeros.
        unbranched_suffixes: train on the actions below a path's last branching too, as the paper
            does; they have no rival, and without them (ours) the same time shows more siblings.
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
    ranking: Literal["order", "regret"] = "order"
    min_label_margin: float = Field(default=0.02, gt=0)
    constant_trees: bool = True
    unbranched_suffixes: bool = True
    optimization: Optimization = Optimization(epochs=2)
    max_length: int = Field(default=4096, ge=32)
    validation_fraction: float = Field(default=0.05, ge=0, lt=1)
    augmentation: Augmentation = Augmentation()
    seed: int = 0


def run_train_qnet(config: TrainQNetConfig) -> Manifest:
    """Train and write the QNet checkpoint to `config.output / "checkpoint"`."""
    with open_run(config.output, config) as run:
        return _train(config, run)


def _train(config: TrainQNetConfig, run: RunFolder) -> Manifest:
    torch.manual_seed(config.seed)
    renderer = load_renderer(config.trunk)
    training_rows, held_back_rows = _read_trees(config)
    held_back = [tree for rows in held_back_rows for tree in _pack(config, renderer, rows)]
    training, epoch_steps = _plan(config, renderer, training_rows)
    if not training:
        raise ConfigError(f"no tree in {config.labels} is left to train on; explore more tasks")
    qnet = QNet.from_trunk(config.trunk, head_width=config.head_width)
    qnet.trunk.requires_grad_(not config.freeze_trunk)
    require_packable(qnet, min(training, key=len))
    loop = Loop(qnet, config.optimization, output=run.path)
    loop.run(
        [step for epoch in epoch_steps for step in epoch],
        lambda indices: _loss_of_trees(qnet, [training[i] for i in indices], config),
        name=f"train-qnet {config.name}",
        size=lambda indices: sum(len(training[i]) for i in indices),
        on_epoch=lambda epoch: _validate(qnet, held_back),
        steps_per_epoch=len(epoch_steps[0]),
    )
    manifest = _manifest(config, training, metrics=_validate(qnet, held_back))
    return save_checkpoint(
        config.output / "checkpoint", model=qnet, tokenizer=renderer.tokenizer, manifest=manifest
    )


def q_of_tree(qnet: QNet, tree: PackedTree) -> Tensor:
    """(T,) Q at every token of a packed tree."""
    q_BT: Tensor = qnet(
        torch.tensor([tree.token_ids]),
        attention_mask=tree.visible()[None, None],
        position_ids=torch.tensor([tree.depths]),
    )
    return q_BT[0]


@torch.no_grad()
def require_packable(qnet: QNet, tree: PackedTree) -> None:
    """Make sure that the trunk sees a packed tree as it sees the tree's longest path alone.

    Raises:
        ConfigError: the trunk has a memory of its own beside the attention mask.
    """
    path = [max(range(len(tree)), key=tree.depths.__getitem__)]
    while (before := tree.before[path[0]]) >= 0:
        path.insert(0, before)
    alone_T = qnet(torch.tensor([[tree.token_ids[i] for i in path]]))[0]
    difference = float((q_of_tree(qnet, tree)[path] - alone_T).abs().max())
    if not difference <= _PACKING_TOLERANCE * max(1.0, float(alone_T.abs().max())):
        raise ConfigError(
            f"{type(qnet.trunk).__name__} gives Q values {difference:.2g} apart for a path alone "
            "and in its tree; its layers see past the attention mask, so train another trunk"
        )


def qnet_loss(qnet: QNet, tree: PackedTree, config: TrainQNetConfig) -> Loss:
    """Weighted squared error on every labelled position, plus the sibling ranking term."""
    q_T = q_of_tree(qnet, tree)
    weight_T = torch.tensor(tree.weight)
    total = (weight_T * (q_T - torch.tensor(tree.target)) ** 2).sum()
    if config.ranking_weight and tree.pairs:
        ranking_P = -torch.nn.functional.logsigmoid(
            _margins(q_T, tree.pairs) / config.ranking_scale
        )
        if config.ranking == "regret":
            ranking_P = ranking_P * _gaps(tree.pairs) / config.ranking_scale
        total = total + config.ranking_weight * ranking_P.sum()
    return Loss(total, float(weight_T.sum()))


@torch.no_grad()
def sibling_accuracy(qnet: QNet, trees: Sequence[PackedTree]) -> tuple[float, float]:
    """Share of sibling pairs that Q puts in the right order; nan where there are none.

    Returns:
        Every pair counted alike, and as often as its labels differ: the first says how often an
        action is misjudged, the second how much that costs.
    """
    right, right_by_gap, pairs, gaps = 0.0, 0.0, 0, 0.0
    for tree in trees:
        if tree.pairs:
            margin_P = _margins(q_of_tree(qnet, tree), tree.pairs)
            right_P = (margin_P > 0).float() + 0.5 * (margin_P == 0).float()
            gap_P = _gaps(tree.pairs)
            right += float(right_P.sum())
            right_by_gap += float((right_P * gap_P).sum())
            pairs += len(tree.pairs)
            gaps += float(gap_P.sum())
    return (right / pairs, right_by_gap / gaps) if pairs else (float("nan"), float("nan"))


def _gaps(pairs: Sequence[Pair]) -> Tensor:
    """(P,) by how much the labels of each pair differ."""
    return torch.tensor([better.q_value - worse.q_value for better, worse in pairs])


def _margins(q_T: Tensor, pairs: Sequence[Pair]) -> Tensor:
    better = torch.tensor([a.position for a, _ in pairs])
    worse = torch.tensor([b.position for _, b in pairs])
    return q_T[better] - q_T[worse]


def _loss_of_trees(qnet: QNet, trees: Sequence[PackedTree], config: TrainQNetConfig) -> Loss:
    parts = [qnet_loss(qnet, tree, config) for tree in trees]
    total = torch.stack([part.total for part in parts]).sum()
    return Loss(total, sum(part.weight for part in parts))


def _validate(qnet: QNet, held_back: Sequence[PackedTree]) -> dict[str, float]:
    qnet.eval()
    pairs = sum(len(tree.pairs) for tree in held_back)
    if not pairs:
        return {}
    accuracy, accuracy_by_gap = sibling_accuracy(qnet, held_back)
    return {
        "sibling_accuracy": accuracy,
        "sibling_accuracy_by_gap": accuracy_by_gap,
        "sibling_pairs": pairs,
    }


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
        if config.constant_trees or not _is_flat(paths):
            (held_back if task_id in held_back_ids else training).append(paths)
    return training, held_back


def _pack(config: TrainQNetConfig, renderer: Renderer, paths: TreeRows) -> list[PackedTree]:
    return pack_tree(
        renderer,
        paths if config.unbranched_suffixes else without_unbranched_suffixes(paths),
        loss_on=config.loss_on,
        min_label_margin=config.min_label_margin,
        max_length=config.max_length,
        max_tokens=config.optimization.micro_batch_tokens,
    )


def _is_flat(paths: Sequence[LabelRow]) -> bool:
    return len({q for path in paths for q in path.q_values if q is not None}) < 2


def _plan(
    config: TrainQNetConfig, renderer: Renderer, trees: Sequence[TreeRows]
) -> tuple[list[PackedTree], list[list[list[list[int]]]]]:
    """Every epoch's trees (renamed anew) and, epoch by epoch, the steps over them."""
    rng = random.Random(config.seed)
    augment = build_augmenter(config.augmentation)
    batches: list[PackedTree] = []
    epochs: list[list[list[list[int]]]] = []
    for _ in range(config.optimization.epochs):
        first = len(batches)
        renamed = (rename_tree(paths, augment, rng) for paths in trees)
        batches += [tree for paths in renamed for tree in _pack(config, renderer, paths)]
        epoch = plan_steps(
            [len(tree) for tree in batches[first:]],
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
    config: TrainQNetConfig, trees: Sequence[PackedTree], *, metrics: dict[str, float]
) -> Manifest:
    labels = [t for tree in trees for t, w in zip(tree.target, tree.weight, strict=True) if w]
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
