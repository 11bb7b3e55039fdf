"""Training examples of a QNet: reading and packing of labelled trees and decision groups."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import ROOT_ID, TreeRow
from qguide.qnet.rendering.renderer import Renderer
from qguide.qnet.types import History, Message
from qguide.training.algorithms.labelling import labelled_paths
from qguide.training.data.augmentation import Augmentation, Augmenter, build_augmenter
from qguide.training.data.decision_groups import GroupLabels, decisions_of, read_groups
from qguide.training.data.records import LabelledTree, labelled_tree
from qguide.training.data.runs import read_rows
from qguide.training.optimization.packed_groups import pack_groups
from qguide.training.optimization.packed_trees import (
    Framing,
    LossOn,
    PackedTree,
    ReadAt,
    pack_tree,
)
from qguide.training.trajectory import Step, observation_text, step_messages


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

    trees: list[LabelledTree]
    episodes: list[TreeRow]

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
        return [packed for tree in rows.trees for packed in self._tree(tree)]

    def groups(self, rows: Rows) -> list[PackedTree]:
        """Pack the decision groups."""
        return [packed for row in rows.episodes for packed in self._episode(row)]

    def epoch(self, rows: Rows, rng: random.Random) -> list[PackedTree]:
        """Pack all rows for one epoch, with newly renamed trees."""
        augment = build_augmenter(self.examples.augmentation)
        renamed = [rename_tree(tree, augment, rng) for tree in rows.trees]
        return self.trees(Rows(renamed, [])) + self.groups(rows)

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


def read_examples(examples: Examples, *, seed: int) -> tuple[Rows, Rows]:
    """Read training rows and held-back rows, which have no task in common."""
    trees = _read_trees(examples)
    episodes = [row for folder in examples.groups for row in read_groups(folder)]
    if not trees and not episodes:
        raise ConfigError(
            f"no rows in labels = {examples.labels} and groups = {examples.groups}; "
            "run `qguide label` or `qguide groups` first"
        )
    task_ids = sorted({tree.task_id for tree in trees} | {row.task_id for row in episodes})
    random.Random(seed).shuffle(task_ids)
    held_back = set(task_ids[: round(len(task_ids) * examples.validation_fraction)])
    training, validation = Rows([], []), Rows([], _held_back_groups(examples, set(task_ids)))
    for tree in trees:
        if examples.constant_trees or len(set(tree.labels.values())) > 1:
            (validation if tree.task_id in held_back else training).trees.append(tree)
    for row in episodes:
        (validation if row.task_id in held_back else training).episodes.append(row)
    return training, validation


def states_of(rows: Rows) -> list[tuple[str, History]]:
    """Each state in which an action is labelled, once, with its task."""
    of_trees = [(one.task_id, state) for one in rows.trees for state in _labelled_states(one)]
    of_groups = [
        (row.task_id, decision.history) for row in rows.episodes for decision in decisions_of(row)
    ]
    return of_trees + of_groups


def _labelled_states(labelled: LabelledTree) -> Iterator[History]:
    for path in labelled_paths(labelled.tree, labelled.labels):
        for node, label in zip(path.nodes, path.q_values, strict=True):
            if label is not None:
                yield labelled.tree.history(node.parent)


def _held_back_groups(examples: Examples, task_ids: set[str]) -> list[TreeRow]:
    rows = []
    for folder in examples.held_back_groups:
        for row in read_groups(folder):
            if row.task_id in task_ids:
                raise ConfigError(
                    f"task {row.task_id} of held_back_groups {folder} is also trained on; "
                    "hold back groups of other tasks"
                )
            rows.append(row)
    return rows


def _read_trees(examples: Examples) -> list[LabelledTree]:
    trees: list[tuple[str, Path, LabelledTree]] = []
    targets: dict[str, Path] = {}
    for folder in examples.labels:
        for row in read_rows(folder, TreeRow):
            tree = labelled_tree(row)
            trees.append((tree.task_id, folder, tree))
            targets.setdefault(tree.target, folder)
    _require_one_target(targets)
    return [tree for *_, tree in sorted(trees, key=itemgetter(0, 1))]


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
    """The step with as many of the renamed messages as it has itself."""
    reply, *observed = islice(messages, len(step_messages(step)))
    return replace(
        step,
        action=reply.text,
        reply=reply,
        observation=observation_text(observed),
        observed=tuple(observed),
    )
