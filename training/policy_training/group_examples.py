"""Training examples of group-relative optimization: decision groups, and groups held back."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from qguide.qnet.errors import ConfigError
from qguide.qnet.rendering.renderer import Renderer
from qguide.training.data.decision_groups import DecisionGroupsRow
from qguide.training.data.group_labels import GroupLabels
from qguide.training.data.runs import RunFolder, read_rows
from qguide.training.optimization.packed_replies import PackedReplies, pack_candidates
from qguide.training.policy_training.examples import refuse_overlap


class GroupExamples(BaseModel):
    """Options for the examples and their packing.

    Attributes:
        groups: run folders of `groups`, drawn by the policy that is trained.
        held_back_groups: run folders of `groups` used for validation only, in addition to the
            held-back tasks of `groups`.
        group_labels: how the value of a candidate is computed from what came of it.
        max_length: longest path in tokens.
        validation_fraction: share of tasks held back.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: tuple[Path, ...] = Field(min_length=1)
    held_back_groups: tuple[Path, ...] = ()
    group_labels: GroupLabels = GroupLabels()
    max_length: int = Field(default=4096, ge=32)
    validation_fraction: float = Field(default=0.05, ge=0, lt=1)


@dataclass(frozen=True, slots=True)
class PackedGroups:
    """All packed rows of a training."""

    training: list[PackedReplies]
    held_back: list[PackedReplies]


def read_group_examples(
    examples: GroupExamples, renderer: Renderer, *, max_tokens: int, seed: int
) -> PackedGroups:
    """Read and pack all examples; training and validation share no task.

    A group whose candidates have the same value teaches nothing, so it is validated on alone.

    Args:
        max_tokens: maximum number of distinct tokens in a packed row.
    """
    tasks, held_back = _rows(examples.groups), _rows(examples.held_back_groups)
    refuse_overlap(set(tasks), held_back, "held_back_groups")
    order = sorted(tasks)
    random.Random(seed).shuffle(order)
    kept = order[: round(len(order) * examples.validation_fraction)]
    held_back |= {task: tasks.pop(task) for task in kept}

    def packed(rows: dict[str, list[DecisionGroupsRow]], *, tied: bool) -> list[PackedReplies]:
        return [
            tree
            for row in chain(*rows.values())
            for tree in pack_candidates(
                renderer,
                row,
                examples.group_labels,
                max_length=examples.max_length,
                max_tokens=max_tokens,
                tied=tied,
            )
        ]

    training = packed(tasks, tied=False)
    if not training:
        raise ConfigError(
            f"no state in {', '.join(map(str, examples.groups))} has candidates of different "
            f"values and at most {examples.max_length} tokens; draw more candidates, value them "
            "by more roll-outs, or raise max_length"
        )
    return PackedGroups(training, packed(held_back, tied=True))


def _rows(folders: Sequence[Path]) -> dict[str, list[DecisionGroupsRow]]:
    """Rows by task."""
    tasks: dict[str, list[DecisionGroupsRow]] = defaultdict(list)
    for folder in folders:
        for row in read_rows(RunFolder(folder).rows, DecisionGroupsRow):
            tasks[row.task_id].append(row)
    return dict(tasks)
