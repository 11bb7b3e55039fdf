"""Training examples of a QNet: reading and packing of labelled trees and decision groups."""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from qguide.qnet.errors import ConfigError
from qguide.qnet.rendering.renderer import Renderer
from qguide.qnet.types import History, Message
from qguide.training.algorithms.regression import LossOn
from qguide.training.data.augmentation import Augmentation, Augmenter, build_augmenter
from qguide.training.data.decision_groups import DecisionGroupsRow
from qguide.training.data.group_labels import GroupLabels
from qguide.training.data.records import LabelRow, after_leaf_fields, messages_of, rows_of
from qguide.training.data.runs import RunFolder, read_rows
from qguide.training.optimization.packed_groups import pack_groups
from qguide.training.optimization.packed_trees import (
    Framing,
    PackedTree,
    ReadAt,
    pack_tree,
    without_unbranched_suffixes,
)

TreeRows = Sequence[LabelRow]
"""The labelled paths of one tree."""


class Examples(BaseModel):
    """Options for the examples and their packing.

    Attributes:
        labels: run folders of `label`.
        groups: run folders of `groups`.
        held_back_groups: run folders of `groups` used for validation only, in addition to the
            held-back tasks of `labels` and `groups`.
        group_labels: how a candidate's label is computed from its continuations.
        read_at: position at which Q is read: the last token of the "action", as in the paper, or
            after the "observation" that followed it. The latter is the value of the state that the
            action led to, for agents that may try actions before they choose.
        loss_on: token positions of an action that carry its label; `all` is the paper's.
        min_label_margin: siblings whose labels differ by less do not form a pair.
        constant_trees: also train on trees whose labels are all equal, as the paper does. Without
            them (ours), the many zeros of a policy that mostly fails do not outweigh the contrasts.
        unbranched_suffixes: also train on the actions after a path's last branching, as the paper
            does. They have no siblings; without them (ours), the same training time covers more
            actions that do.
        max_length: longest path in tokens.
        validation_fraction: share of tasks held back.
        augmentation: consistent renaming of trees, drawn anew in each epoch; decision groups are
            not renamed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: tuple[Path, ...] = ()
    groups: tuple[Path, ...] = ()
    held_back_groups: tuple[Path, ...] = ()
    group_labels: GroupLabels = GroupLabels()
    read_at: ReadAt = "action"
    loss_on: LossOn = "all"
    min_label_margin: float = Field(default=0.02, gt=0)
    constant_trees: bool = True
    unbranched_suffixes: bool = True
    max_length: int = Field(default=4096, ge=32)
    validation_fraction: float = Field(default=0.05, ge=0, lt=1)
    augmentation: Augmentation = Augmentation()


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that were read: labelled trees, and episodes with their decisions."""

    trees: list[TreeRows]
    episodes: list[DecisionGroupsRow]

    def __len__(self) -> int:
        return len(self.trees) + len(self.episodes)


@dataclass(frozen=True, slots=True)
class Packing:
    """Packing of rows into packed trees.

    Attributes:
        max_tokens: maximum number of distinct tokens in a packed tree.
        with_answers: append each action's observation, for the world-model loss.
    """

    renderer: Renderer
    examples: Examples
    max_tokens: int
    with_features: bool
    with_answers: bool = False

    @property
    def framing(self) -> Framing | None:
        """The chat template's part of an answer; None where none is added."""
        return Framing.of(self.renderer) if self.with_answers else None

    @property
    def is_renamed_each_epoch(self) -> bool:
        """True if the trees are renamed anew in every epoch."""
        return bool(self.examples.labels) and self.examples.augmentation.probability > 0

    def trees(self, rows: Rows) -> list[PackedTree]:
        """Pack the labelled trees."""
        return [packed for paths in rows.trees for packed in self._tree(paths)]

    def groups(self, rows: Rows) -> list[PackedTree]:
        """Pack the decision groups."""
        return [packed for row in rows.episodes for packed in self._episode(row)]

    def epoch(self, rows: Rows, rng: random.Random) -> list[PackedTree]:
        """Pack all rows for one epoch, with newly renamed trees."""
        augment = build_augmenter(self.examples.augmentation)
        renamed = [rename_tree(paths, augment, rng) for paths in rows.trees]
        return self.trees(Rows(renamed, [])) + self.groups(rows)

    def _tree(self, paths: TreeRows) -> list[PackedTree]:
        examples = self.examples
        return pack_tree(
            self.renderer,
            paths if examples.unbranched_suffixes else without_unbranched_suffixes(paths),
            loss_on=examples.loss_on,
            min_label_margin=examples.min_label_margin,
            max_length=examples.max_length,
            max_tokens=self.max_tokens,
            with_features=self.with_features,
            read_at=examples.read_at,
            framing=self.framing,
        )

    def _episode(self, row: DecisionGroupsRow) -> list[PackedTree]:
        examples = self.examples
        return pack_groups(
            self.renderer,
            row,
            examples.group_labels,
            min_label_margin=examples.min_label_margin,
            max_length=examples.max_length,
            max_tokens=self.max_tokens,
            with_features=self.with_features,
            read_at=examples.read_at,
            framing=self.framing,
        )


def read_examples(examples: Examples, *, seed: int) -> tuple[Rows, Rows]:
    """Read training rows and held-back rows, which have no task in common."""
    trees = _read_trees(examples)
    episodes = [
        row
        for folder in examples.groups
        for row in read_rows(RunFolder(folder).rows, DecisionGroupsRow)
    ]
    if not trees and not episodes:
        raise ConfigError(
            f"no rows in labels = {examples.labels} and groups = {examples.groups}; "
            "run `qguide label` or `qguide groups` first"
        )
    task_ids = sorted({t for t, _ in trees} | {row.task_id for row in episodes})
    random.Random(seed).shuffle(task_ids)
    held_back = set(task_ids[: round(len(task_ids) * examples.validation_fraction)])
    training, validation = Rows([], []), Rows([], _held_back_groups(examples, set(task_ids)))
    for task_id, paths in trees:
        if examples.constant_trees or not _is_constant(paths):
            (validation if task_id in held_back else training).trees.append(paths)
    for row in episodes:
        (validation if row.task_id in held_back else training).episodes.append(row)
    return training, validation


def states_of(rows: Rows) -> list[tuple[str, History]]:
    """Each state in which an action is labelled, once, with its task."""
    of_trees = [
        (path.task_id, state)
        for paths in rows.trees
        for path in paths
        for state in _labelled_states(path)
    ]
    of_groups = [(row.task_id, state) for row in rows.episodes for state, _ in row.states()]
    return of_trees + of_groups


def _labelled_states(path: LabelRow) -> Iterator[History]:
    messages = messages_of(path.messages)
    replies = [i for i, message in enumerate(messages) if message.role == "assistant"]
    for at, label in zip(replies, path.q_values, strict=True):
        if label is not None:
            yield messages[:at]


def _held_back_groups(examples: Examples, task_ids: set[str]) -> list[DecisionGroupsRow]:
    rows = []
    for folder in examples.held_back_groups:
        for row in read_rows(RunFolder(folder).rows, DecisionGroupsRow):
            if row.task_id in task_ids:
                raise ConfigError(
                    f"task {row.task_id} of held_back_groups {folder} is also trained on; "
                    "hold back groups of other tasks"
                )
            rows.append(row)
    return rows


def _read_trees(examples: Examples) -> list[tuple[str, TreeRows]]:
    rows: dict[tuple[str, Path], list[LabelRow]] = defaultdict(list)
    targets: dict[str, Path] = {}
    for folder in examples.labels:
        for row in read_rows(RunFolder(folder).rows, LabelRow):
            rows[row.task_id, folder].append(row)
            targets.setdefault(row.target, folder)
    _require_one_target(targets)
    return [(task_id, paths) for (task_id, _), paths in sorted(rows.items())]


def _require_one_target(targets: Mapping[str, Path]) -> None:
    """Refuse labels that measure different quantities: their mean would have no meaning."""
    if len(targets) > 1:
        listed = ", ".join(f"{target!r} in {folder}" for target, folder in targets.items())
        raise ConfigError(
            f"labels have {len(targets)} targets: {listed}; train on labels of one target, or run "
            "`qguide label` again with the same target for all"
        )


def _is_constant(paths: Sequence[LabelRow]) -> bool:
    return len({q for path in paths for q in path.q_values if q is not None}) < 2


def rename_tree(paths: TreeRows, augment: Augmenter, rng: random.Random) -> TreeRows:
    """Rename all paths of one tree in the same way."""
    messages = iter(augment([m for row in paths for m in _messages_of(row)], rng))
    return [_with_messages(row, messages) for row in paths]


def _messages_of(row: LabelRow) -> list[Message]:
    """A path's messages, including what was observed last."""
    return [*messages_of(row.messages), *(row.after_leaf or ())]


def _with_messages(row: LabelRow, messages: Iterator[Message]) -> LabelRow:
    """The row with as many messages, taken from `messages`, as `_messages_of` gives."""
    update: dict[str, object] = {"messages": rows_of(islice(messages, len(row.messages)))}
    if row.after_leaf is not None:
        update |= after_leaf_fields(tuple(islice(messages, len(row.after_leaf))))
    return row.model_copy(update=update)
