"""Examples have labels of one target, and no task is both trained on and held back."""

import random
from pathlib import Path

import pytest

from qguide.qnet.errors import ConfigError
from qguide.qnet.types import Message
from qguide.training.algorithms.labelling import Target
from qguide.training.data.augmentation import Augmentation, build_augmenter
from qguide.training.data.records import LabelRow, rows_of
from qguide.training.data.runs import JsonlWriter, RunFolder
from qguide.training.q_training.examples import Examples, read_examples, rename_tree
from tests.support.echo import episode, groups_in


def write_labels(folder: Path, target: Target, *, tasks: int = 4) -> Path:
    """One path of one action for each task."""
    with JsonlWriter(RunFolder(folder).rows) as writer:
        for number in range(tasks):
            writer.write(
                LabelRow(
                    task_id=f"task {number}",
                    kind="k",
                    environment="fake",
                    target=target,
                    messages=rows_of([Message("user", "go"), Message("assistant", "left")]),
                    q_values=(0.5,),
                    node_ids=(1,),
                    parent_ids=(0,),
                )
            )
    return folder


def test_labels_of_different_targets_are_refused(tmp_path: Path) -> None:
    folders = (write_labels(tmp_path / "a", "q"), write_labels(tmp_path / "b", "avg"))
    with pytest.raises(ConfigError, match=r"2 targets: 'q' in .*a, 'avg' in .*b; train on labels"):
        read_examples(Examples(labels=folders), seed=0)


def test_labels_of_one_target_are_read_from_several_folders(tmp_path: Path) -> None:
    folders = (write_labels(tmp_path / "a", "q"), write_labels(tmp_path / "b", "q"))
    examples = Examples(labels=folders, validation_fraction=0.25)
    training, held_back = read_examples(examples, seed=0)
    trained_on = {row.task_id for paths in training.trees for row in paths}
    kept = {row.task_id for paths in held_back.trees for row in paths}
    assert (len(training), len(held_back)) == (6, 2)
    assert trained_on.isdisjoint(kept)


def test_groups_that_are_trained_on_are_not_held_back(tmp_path: Path) -> None:
    groups = groups_in(tmp_path / "groups", range(4))
    with pytest.raises(ConfigError, match=r"task g0 of held_back_groups .* is also trained on"):
        read_examples(Examples(groups=(groups,), held_back_groups=(groups,)), seed=0)


def test_the_paths_of_a_tree_get_the_same_new_names() -> None:
    augment = build_augmenter(Augmentation(probability=1.0, groups=(("red", "blue", "green"),)))
    rows = [
        LabelRow(
            task_id="t",
            kind="say",
            environment="echo",
            target="q",
            messages=rows_of((episode("red")[0], episode(said)[1])),
            q_values=(0.5,),
            node_ids=(node,),
            parent_ids=(0,),
        )
        for node, said in ((1, "red"), (2, "blue"))
    ]
    for seed in range(6):
        first, second = rename_tree(rows, augment, random.Random(seed))
        asked = first.messages[0].content
        assert asked == second.messages[0].content
        assert asked == f"Say {first.messages[1].content.removeprefix('Action: ')}."
        assert second.messages[1].content != first.messages[1].content
        assert (first.q_values, second.node_ids) == ((0.5,), (2,))
