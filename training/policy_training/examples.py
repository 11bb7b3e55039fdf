"""Training examples of policies: preference pairs or decision groups, and what is held back."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import TreeRow
from qguide.qnet.rendering.renderer import Renderer
from qguide.qnet.types import History
from qguide.training.data.decision_groups import read_groups
from qguide.training.data.preferences import PreferenceRow
from qguide.training.data.runs import read_rows
from qguide.training.optimization.packed_replies import PackedReplies, add_pair, pack_candidates
from qguide.training.policy_training.options import GroupExamples, PairExamples, ReplyExamples


@dataclass(frozen=True, slots=True)
class PackedExamples:
    """All packed rows of a training."""

    training: list[PackedReplies]
    held_back: list[PackedReplies]
    others: list[PackedReplies]
    groups: list[PackedReplies]

    @property
    def parts(self) -> tuple[list[PackedReplies], ...]:
        """All of them, those of the training first."""
        return self.training, self.held_back, self.others, self.groups


def read_pair_examples(examples: PairExamples, renderer: Renderer, *, max_tokens: int, seed: int) -> PackedExamples:
    """Read and pack all examples; training and validation share no task."""
    read = partial(_packed_pairs, examples, renderer, max_tokens)
    tasks = read(examples.pairs)
    if not tasks:
        raise ConfigError(f"no rows in pairs = {examples.pairs}; run `qguide pairs` first")
    kept = set(examples.held_back_of(tasks, seed=seed))
    held_back, others = read(examples.held_back_pairs), read(examples.other_pairs)
    groups = _groups(examples.held_back_groups)
    for found, name in ((held_back, "held_back_pairs"), (others, "other_pairs"), (groups, "held_back_groups")):
        refuse_overlap(tasks, found, name)
    training = [tree for task, trees in tasks.items() if task not in kept for tree in trees]
    if not training:
        raise ConfigError(
            f"no pair in {', '.join(map(str, examples.pairs))} has at most {examples.max_length} "
            "tokens; raise max_length"
        )
    return PackedExamples(
        training=training,
        held_back=[*chain(*(tasks[task] for task in sorted(kept)), *held_back.values())],
        others=[*chain(*others.values())],
        groups=_packed_groups(examples, renderer, chain(*groups.values()), max_tokens=max_tokens),
    )


def states_of_pairs(examples: PairExamples) -> list[tuple[str, History]]:
    """The states of all pairs, each with its task."""
    return [(row.task_id, row.history) for folder in examples.pairs for row in read_rows(folder, PreferenceRow)]


def _packed_pairs(
    examples: PairExamples, renderer: Renderer, max_tokens: int, folders: Sequence[Path]
) -> dict[str, list[PackedReplies]]:
    # Packed as they are read: a pair repeats its whole history, and a task has many pairs.
    tasks: dict[str, list[PackedReplies]] = defaultdict(list)
    for folder in folders:
        for row in read_rows(folder, PreferenceRow):
            add_pair(tasks[row.task_id], renderer, row, max_length=examples.max_length, max_tokens=max_tokens)
    return dict(tasks)


def refuse_overlap(trained: Iterable[str], held_back: Iterable[str], name: str) -> None:
    """Make sure that no task to validate on is trained on."""
    if both := sorted(set(trained) & set(held_back)):
        raise ConfigError(f"task {both[0]} of {name} is also trained on; hold back pairs and groups of other tasks")


def read_group_examples(
    examples: GroupExamples, renderer: Renderer, *, max_tokens: int, seed: int
) -> tuple[list[PackedReplies], list[PackedReplies]]:
    """Packed rows to train on and to validate on, which share no task.

    A group whose candidates have the same value teaches nothing, so it is validated on alone.
    """
    tasks, held_back = _groups(examples.groups), _groups(examples.held_back_groups)
    refuse_overlap(tasks, held_back, "held_back_groups")
    kept = examples.held_back_of(tasks, seed=seed)
    held_back |= {task: tasks.pop(task) for task in kept}
    packed = partial(_packed_groups, examples, renderer, max_tokens=max_tokens)
    training = packed(chain(*tasks.values()), tied=False)
    if not training:
        raise ConfigError(
            f"no state in {', '.join(map(str, examples.groups))} has candidates of different "
            f"values and at most {examples.max_length} tokens; draw more candidates, value them "
            "by more roll-outs, or raise max_length"
        )
    return training, packed(chain(*held_back.values()))


def _packed_groups(
    examples: ReplyExamples, renderer: Renderer, rows: Iterable[TreeRow], *, max_tokens: int, tied: bool = True
) -> list[PackedReplies]:
    """The groups as packed rows; `tied` keeps states whose candidates have one value."""
    return [
        tree
        for row in rows
        for tree in pack_candidates(
            renderer, row, examples.group_labels, max_length=examples.max_length, max_tokens=max_tokens, tied=tied
        )
    ]


def _groups(folders: Sequence[Path]) -> dict[str, list[TreeRow]]:
    tasks: dict[str, list[TreeRow]] = defaultdict(list)
    for folder in folders:
        for row in read_groups(folder):
            tasks[row.task_id].append(row)
    return dict(tasks)
