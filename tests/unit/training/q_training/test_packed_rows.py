"""Trees that are packed when their turn comes are those of a training that holds them all."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from qguide.qnet.errors import RecordError
from qguide.training.data.augmentation import Augmentation, build_augmenter
from qguide.training.data.records import LabelledTree
from qguide.training.jobs.train_qnet import run_train_qnet
from qguide.training.optimization.options import QNetOptimization
from qguide.training.optimization.packed_trees import PackedTree
from qguide.training.q_training import packed_rows
from qguide.training.q_training.examples import Packing, read_examples, rename_tree
from qguide.training.q_training.kept_lengths import keep_lengths, kept_lengths
from qguide.training.q_training.options import Examples, TrainQNetConfig
from qguide.training.q_training.packed_rows import PackedRows
from tests.support.echo import groups_in, labels_in
from tests.support.tiny_models import renderer, save_policy

RENAMED = Augmentation(probability=0.7, groups=(("red", "blue", "green"),))


def held(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """Hold packed trees of at most so many tokens."""
    monkeypatch.setattr(packed_rows, "HELD_TOKENS", tokens)


def test_trees_that_are_packed_again_have_the_same_new_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held(monkeypatch, 0)
    monkeypatch.setattr(packed_rows, "_DRAWS", 3)
    examples = Examples(
        labels=(labels_in(tmp_path / "labels"),),
        groups=(groups_in(tmp_path / "groups", range(4)),),
        augmentation=RENAMED,
    )
    rows, _ = read_examples(examples, seed=0)
    packing = Packing(renderer(), examples, max_tokens=60, with_features=False)
    packed, rng = PackedRows(), Random(5)
    lengths = [list(packing.add_epoch(packed, rows, rng)) for _ in range(2)]

    whole, augment = Random(5), build_augmenter(RENAMED)
    for epoch, found in enumerate(lengths):
        trees = [rename_tree(tree, augment, whole) for tree in rows.trees]
        expected = [one for tree in trees for one in packing._tree(tree)]
        expected += packing.groups(rows)
        first = epoch * len(found)
        assert found == [len(tree) for tree in expected]
        assert packed[first : first + len(found)] == expected
    assert packed[0] != packed[len(lengths[0])]
    assert rng.getstate() == whole.getstate()


def test_a_later_start_packs_no_tree_for_its_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_rows, "_DRAWS", 3)
    labels, groups = labels_in(tmp_path / "labels"), groups_in(tmp_path / "groups", range(4))
    examples = Examples(labels=(labels,), groups=(groups,), augmentation=RENAMED)
    packing = Packing(renderer(), examples, max_tokens=60, with_features=False)
    packed = Counter[str]()
    pack = Packing._tree

    def counted(self: Packing, tree: LabelledTree) -> list[PackedTree]:
        packed["trees"] += 1
        return pack(self, tree)

    monkeypatch.setattr(Packing, "_tree", counted)

    def start() -> tuple[PackedRows, Random]:
        rows, _ = read_examples(examples, seed=0)
        found, rng = PackedRows(), Random(5)
        kept = kept_lengths(tmp_path, rows.identity)
        for _ in range(2):
            packing.add_epoch(found, rows, rng, kept)
        keep_lengths(tmp_path, found, rows.identity)
        return found, rng

    first, rng = start()
    found = packed["trees"]
    later, after = start()
    assert packed["trees"] == found > 0
    assert (later.lengths, later.label_range) == (first.lengths, first.label_range)
    assert after.getstate() == rng.getstate()
    assert list(later) == list(first)

    later._held.clear()
    later.lengths[0] += 1
    with pytest.raises(RecordError, match="tree 0 had"):
        later[0]
    lines = (labels / "rows.jsonl").read_text().splitlines(keepends=True)
    relabelled = lines[0].replace('"q":[1.0,0.0]', '"q":[0.9,0.0]')
    assert relabelled != lines[0]
    (labels / "rows.jsonl").write_text("".join([relabelled, *lines[1:]]))
    packed.clear()
    start()
    assert packed["trees"] > 0, "rows of equal sizes say something else"
    (labels / "rows.jsonl").write_text("".join(lines[1:]))
    packed.clear()
    others, _ = start()
    assert packed["trees"] > 0, "other rows are packed for their lengths"
    assert len(others) < len(first)


def test_short_trees_count_for_more_than_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    held(monkeypatch, 200)
    asked, tree = list[int](), PackedTree()
    tree.add([1, 2, 3])

    def pack(number: int) -> list[PackedTree]:
        asked.append(number)
        return [tree]

    rows = PackedRows()
    rows.extend(5, pack)
    assert rows[2:5] == [tree] * 3
    assert asked == [0, 1, 2, 3, 4]
    assert rows[0] == tree
    assert asked[5:] == [0]


@pytest.mark.parametrize("augmentation", [Augmentation(), RENAMED], ids=["as they are", "renamed"])
def test_a_training_that_holds_no_tree_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, augmentation: Augmentation
) -> None:
    policy = save_policy(tmp_path / "policy")
    labels = labels_in(tmp_path / "labels")
    groups = groups_in(tmp_path / "groups", range(12))

    def weights(name: str) -> bytes:
        config = TrainQNetConfig(
            labels=(labels,),
            groups=(groups,),
            trunk=policy,
            output=tmp_path / name,
            head_width=16,
            ranking_weight=1.0,
            validation_fraction=0.2,
            augmentation=augmentation,
            optimization=QNetOptimization(epochs=1, batch_tokens=80, micro_batch_tokens=80),
        )
        run_train_qnet(config)
        return (tmp_path / name / "checkpoint" / "model.safetensors").read_bytes()

    all_held = weights("held")
    held(monkeypatch, 0)
    assert weights("packed again") == all_held
