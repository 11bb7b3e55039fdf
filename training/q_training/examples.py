"""Training examples of a QNet: reading and packing of labelled trees and decision groups."""

import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import ROOT_ID, TreeRow
from qguide.qnet.rendering.renderer import Renderer
from qguide.qnet.types import History, Message
from qguide.training.algorithms.backups import labelled_paths
from qguide.training.data.augmentation import Augmenter, build_augmenter
from qguide.training.data.decision_groups import decisions_of
from qguide.training.data.records import LabelledTree, labelled_tree
from qguide.training.data.row_files import Place, RowStore
from qguide.training.optimization.packed_groups import pack_groups
from qguide.training.optimization.packed_trees import Framing, PackedTree, pack_tree
from qguide.training.q_training.options import Examples
from qguide.training.q_training.packed_rows import PackedEpoch, PackedRows, Renaming, StoredItems
from qguide.training.trajectory import Step, observation_text, step_messages


@dataclass(frozen=True, slots=True)
class Rows:
    """Labelled trees, and episodes with their decisions, each read when it is asked for."""

    trees: StoredItems[LabelledTree]
    episodes: StoredItems[TreeRow]

    @classmethod
    def of(cls, store: RowStore[TreeRow]) -> Self:
        """No rows yet."""
        return cls(StoredItems(store, labelled_tree), StoredItems(store, lambda row: row))

    def __len__(self) -> int:
        return len(self.trees) + len(self.episodes)

    @property
    def identity(self) -> tuple[bytes, bytes]:
        """Marks of the trees and of the episodes, by which a run knows them again."""
        return self.trees.identity, self.episodes.identity

    @property
    def states(self) -> Iterable[tuple[str, History]]:
        """Each state in which an action is labelled, once, with its task."""
        return _States(self)


@dataclass(frozen=True, slots=True)
class _States:
    """The states of rows, which may be iterated several times."""

    rows: Rows

    def __iter__(self) -> Iterator[tuple[str, History]]:
        for tree in self.rows.trees:
            for state in _labelled_states(tree):
                yield tree.task_id, state
        for row in self.rows.episodes:
            for decision in decisions_of(row):
                yield row.task_id, decision.history


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

    def trees(self, rows: Rows) -> PackedRows:
        """The labelled trees, packed."""
        packed = PackedRows()
        packed.extend(len(rows.trees), lambda number: self._tree(rows.trees[number]))
        return packed

    def groups(self, rows: Rows) -> PackedRows:
        """The decision groups, packed."""
        packed = PackedRows()
        packed.extend(len(rows.episodes), lambda number: self._episode(rows.episodes[number]))
        return packed

    def add_epoch(
        self, packed: PackedRows, rows: Rows, rng: random.Random, kept: Sequence[PackedEpoch] = ()
    ) -> Sequence[int]:
        """Add all rows for one epoch, with newly renamed trees; returns their lengths.

        Args:
            kept: epochs that an earlier start has found.
        """
        augment = build_augmenter(self.examples.augmentation)
        renaming = Renaming(augment, rng)

        def pack(number: int) -> list[PackedTree]:
            if number >= len(rows.trees):
                return self._episode(rows.episodes[number - len(rows.trees)])
            return self._tree(rename_tree(rows.trees[number], augment, renaming.of_tree(number)))

        if len(packed.epochs) < len(kept):
            return packed.restore_epoch(kept[len(packed.epochs)], len(rows), pack, renaming)
        return packed.add_epoch(len(rows), pack, renaming)

    def _tree(self, tree: LabelledTree) -> list[PackedTree]:
        examples = self.examples
        return pack_tree(
            self.renderer,
            tree,
            loss_on=examples.loss_on,
            unbranched_suffixes=examples.unbranched_suffixes,
            min_label_margin=examples.min_label_margin,
            max_length=examples.max_length,
            max_tokens=self.max_tokens,
            with_features=self.with_features,
            read_at=examples.read_at,
            framing=self.framing,
        )

    def _episode(self, row: TreeRow) -> list[PackedTree]:
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


_TABLE: Final = "CREATE TABLE rows (task, folder, grouped, constant, file, start, length)"
_TASKS: Final = "SELECT COUNT(DISTINCT task) FROM rows"
_KNOWN: Final = "SELECT 1 FROM rows WHERE task = ? LIMIT 1"
_IN_ORDER: Final = """
    SELECT grouped, constant, ordinal, file, start, length FROM (
        SELECT *, rowid AS number, DENSE_RANK() OVER (ORDER BY task) - 1 AS ordinal FROM rows
    )
    ORDER BY grouped, CASE grouped WHEN 0 THEN ordinal END, CASE grouped WHEN 0 THEN folder END,
        number
"""


def read_examples(examples: Examples, *, seed: int) -> tuple[Rows, Rows]:
    """Find training rows and held-back rows, which have no task in common.

    Trees are in the order of their tasks, and episodes in that of their files. SQLite sorts, in a
    temporary file.
    """
    store = RowStore(TreeRow)
    training, validation = Rows.of(store), Rows.of(store)
    with closing(sqlite3.connect("")) as index:
        index.execute(_TABLE)
        _note_trees(examples, store, index)
        _note_episodes(examples, store, index)
        ((tasks,),) = index.execute(_TASKS)
        if not tasks:
            raise ConfigError(
                f"no rows in labels = {examples.labels} and groups = {examples.groups}; "
                "run `qguide label` or `qguide groups` first"
            )
        order = list(range(tasks))
        random.Random(seed).shuffle(order)
        held_back = set(order[: round(tasks * examples.validation_fraction)])
        _note_held_back(examples, store, index, validation)
        for grouped, constant, ordinal, *place in index.execute(_IN_ORDER):
            rows = validation if ordinal in held_back else training
            if grouped:
                rows.episodes.append(Place(*place))
            elif examples.constant_trees or not constant:
                rows.trees.append(Place(*place))
    return training, validation


def _labelled_states(labelled: LabelledTree) -> Iterator[History]:
    for path in labelled_paths(labelled.tree, labelled.labels):
        for node, label in zip(path.nodes, path.q_values, strict=True):
            if label is not None:
                yield labelled.tree.history(node.parent)


def _note_held_back(examples: Examples, store: RowStore[TreeRow], index: sqlite3.Connection, held_back: Rows) -> None:
    index.execute("CREATE INDEX of_task ON rows (task)")
    parts: tuple[tuple[str, tuple[Path, ...], StoredItems[Any], Callable[[TreeRow], object]], ...] = (
        ("held_back_labels", examples.held_back_labels, held_back.trees, labelled_tree),
        ("held_back_groups", examples.held_back_groups, held_back.episodes, decisions_of),
    )
    for name, folders, rows, check in parts:
        for folder in folders:
            for place, row in store.add(folder):
                check(row)  # refuses another tree
                if index.execute(_KNOWN, (row.task_id,)).fetchone():
                    raise ConfigError(
                        f"task {row.task_id} of {name} {folder} is also trained on; hold back those of other tasks"
                    )
                rows.append(place)


def _note_trees(examples: Examples, store: RowStore[TreeRow], index: sqlite3.Connection) -> None:
    targets: dict[str, Path] = {}
    folders = sorted(examples.labels)
    for folder in examples.labels:
        for place, row in store.add(folder):
            tree = labelled_tree(row)
            targets.setdefault(tree.target, folder)
            constant = len(set(tree.labels.values())) <= 1
            _note(index, row, place, folder=folders.index(folder), constant=constant)
    _require_one_target(targets)


def _note_episodes(examples: Examples, store: RowStore[TreeRow], index: sqlite3.Connection) -> None:
    for folder in examples.groups:
        for place, row in store.add(folder):
            decisions_of(row)  # refuses another tree
            _note(index, row, place, grouped=True)


def _note(
    index: sqlite3.Connection,
    row: TreeRow,
    place: Place,
    *,
    folder: int = 0,
    grouped: bool = False,
    constant: bool = False,
) -> None:
    values = (row.task_id, folder, grouped, constant, *place)
    index.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)", values)


def _require_one_target(targets: Mapping[str, Path]) -> None:
    """Refuse labels that measure different quantities: their mean would have no meaning."""
    if len(targets) > 1:
        listed = ", ".join(f"{target!r} in {folder}" for target, folder in targets.items())
        raise ConfigError(
            f"labels have {len(targets)} targets: {listed}; train on labels of one target, or run "
            "`qguide label` again with the same target for all"
        )


def rename_tree(labelled: LabelledTree, augment: Augmenter, rng: random.Random) -> LabelledTree:
    """Rename all messages of a tree in the same way."""
    tree = labelled.tree
    start = tree.history(ROOT_ID)
    messages = iter(augment([*start, *(m for n in tree.nodes for m in step_messages(n.step))], rng))
    opening = tuple(islice(messages, len(start)))
    nodes = [replace(node, step=_renamed(node.step, messages)) for node in tree.nodes]
    renamed = replace(tree, nodes=tuple(nodes), opening=opening, system=None)
    return replace(labelled, tree=renamed)


def _renamed(step: Step, messages: Iterator[Message]) -> Step:
    reply, *observed = islice(messages, len(step_messages(step)))
    return replace(
        step, action=reply.text, reply=reply, observation=observation_text(observed), observed=tuple(observed)
    )
