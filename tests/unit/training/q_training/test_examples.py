"""Examples have labels of one target, and no task is both trained on and held back."""

import random
from pathlib import Path

import pytest

from qguide.qnet.errors import ConfigError
from qguide.qnet.types import Message
from qguide.training.algorithms.backups import Target
from qguide.training.data.augmentation import Augmentation, build_augmenter
from qguide.training.data.runs import JsonlWriter, RunFolder
from qguide.training.q_training.examples import read_examples, rename_tree
from qguide.training.q_training.options import Examples
from tests.support.echo import episode, groups_in
from tests.support.labels import labelled, row_of


def write_labels(folder: Path, target: Target, *, tasks: int = 4) -> Path:
    """One path of one action for each task."""
    with JsonlWriter(RunFolder(folder).rows) as writer:
        for number in range(tasks):
            chat = [Message("user", "go"), Message("assistant", "left")]
            tree = labelled(chat, labels={1: 0.5}, target=target, task_id=f"task {number}")
            writer.write(row_of(tree))
    return folder


def test_labels_of_different_targets_are_refused(tmp_path: Path) -> None:
    folders = (write_labels(tmp_path / "a", "q"), write_labels(tmp_path / "b", "avg"))
    with pytest.raises(ConfigError, match=r"2 targets: 'q' in .*a, 'avg' in .*b; .*`qguide label`"):
        read_examples(Examples(labels=folders), seed=0)


def test_labels_of_one_target_are_read_from_several_folders(tmp_path: Path) -> None:
    folders = (write_labels(tmp_path / "a", "q"), write_labels(tmp_path / "b", "q"))
    examples = Examples(labels=folders, validation_fraction=0.25)
    training, held_back = read_examples(examples, seed=0)
    trained_on = {tree.task_id for tree in training.trees}
    kept = {tree.task_id for tree in held_back.trees}
    assert (len(training), len(held_back)) == (6, 2)
    assert trained_on.isdisjoint(kept)


def test_groups_that_are_trained_on_are_not_held_back(tmp_path: Path) -> None:
    groups = groups_in(tmp_path / "groups", range(4))
    with pytest.raises(ConfigError, match=r"task g0 of held_back_groups .*also"):
        read_examples(Examples(groups=(groups,), held_back_groups=(groups,)), seed=0)


def test_the_paths_of_a_tree_get_the_same_new_names() -> None:
    augment = build_augmenter(Augmentation(probability=1.0, groups=(("red", "blue", "green"),)))
    chats = [(episode("red")[0], episode(said)[1]) for said in ("red", "blue")]
    tree = labelled(*chats, labels={1: 0.5, 2: 0.5})
    for seed in range(6):
        renamed = rename_tree(tree, augment, random.Random(seed))
        (asked, first), (also, second) = (renamed.tree.history(n)[:2] for n in (1, 2))
        assert asked == also
        assert asked.content == f"Say {first.content.removeprefix('Action: ')}."
        assert second != first
        assert renamed.labels == tree.labels
