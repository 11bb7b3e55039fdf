"""Trees written down by hand, replayed through every target."""

import json
from pathlib import Path
from typing import Any

import pytest

from qguide.qnet.errors import EmptyTreeError
from qguide.qnet.records import TreeRow
from qguide.training.algorithms.backups import BackedUpTarget, label_tree, labelled_paths
from qguide.training.algorithms.tree import Tree, branching_fraction, merge_branch
from qguide.training.data.records import tree_from_row
from qguide.training.trajectory import Step

GOLDEN = sorted((Path(__file__).parents[3] / "data" / "trees").glob("*.json"))
TARGETS: tuple[BackedUpTarget, ...] = ("q", "avg", "reward", "progress")


def load(path: Path) -> tuple[dict[str, Any], Tree]:
    golden = json.loads(path.read_text(encoding="utf-8"))
    return golden, tree_from_row(TreeRow.model_validate(golden["tree"]))


def by_id(labels: dict[str, float]) -> dict[int, float]:
    return {int(node_id): label for node_id, label in labels.items()}


def test_there_are_golden_trees() -> None:
    assert len(GOLDEN) == 3


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
@pytest.mark.parametrize("target", TARGETS)
def test_labels_equal_the_ones_computed_by_hand(path: Path, target: BackedUpTarget) -> None:
    golden, tree = load(path)
    labels = label_tree(tree, target=target, gamma=golden["gamma"], normalized=False)
    assert labels == pytest.approx(by_id(golden[target]))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_normalised_labels_equal_the_ones_computed_by_hand(path: Path) -> None:
    golden, tree = load(path)
    labels = label_tree(tree, target="q", gamma=golden["gamma"], normalized=True)
    assert labels == pytest.approx(by_id(golden["normalized"]))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_paths_and_their_owners_are_the_ones_written_down(path: Path) -> None:
    golden, tree = load(path)
    labels = label_tree(tree, target="q", gamma=golden["gamma"], normalized=False)
    paths = list(labelled_paths(tree, labels))
    assert [[node.id for node in each.nodes] for each in paths] == golden["paths"]
    owned = [[q_value is not None for q_value in each.q_values] for each in paths]
    assert owned == golden["owned"]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_branching_fraction_counts_the_root(path: Path) -> None:
    golden, tree = load(path)
    assert branching_fraction(tree) == pytest.approx(golden["branching_fraction"])


@pytest.mark.parametrize("target", TARGETS)
def test_a_tree_without_actions_has_no_labels(target: BackedUpTarget) -> None:
    with pytest.raises(EmptyTreeError, match=r"draws$"):
        label_tree(Tree("nothing yet"), target=target, gamma=0.9, normalized=True)


def test_who_repeats_what_does_nothing_pays_for_more_than_one_step() -> None:
    wrong = Step("Action: take cup 1", "Nothing happens.", valid=False)
    win = Step("Action: go to desk 1", "You won.", reward=1.0, terminated=True)
    tree, _ = merge_branch(Tree("task"), [wrong, wrong, wrong, win], source="policy")
    tree, _ = merge_branch(tree, [win], at=1, source="policy")
    labels = label_tree(tree, target="q", gamma=0.5, normalized=False, noop_cost_steps=3)
    assert labels == pytest.approx({1: 0.5, 2: 0.5**6, 3: 0.5**3, 4: 1.0, 5: 1.0})
    assert label_tree(tree, target="q", gamma=0.5, normalized=False)[2] == pytest.approx(0.25)
