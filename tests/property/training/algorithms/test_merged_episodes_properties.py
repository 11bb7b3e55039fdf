"""Episodes make the same tree in whatever order they come."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.records import TaskRow
from qguide.training.algorithms.backups import average_outcome, bellman_backup, labels_of_actions
from qguide.training.algorithms.tree import Tree, merge_branch, merge_trees
from qguide.training.data.records import tree_from_row, tree_row
from qguide.training.recordings.task_tree import build_task_trees
from qguide.training.trajectory import Step

TASK = TaskRow(task_id="t", kind="k", environment="e")
outcomes = st.sampled_from((0.0, 0.25, 1.0))
observations = st.sampled_from(("x", "y", ""))


@st.composite
def episodes(draw: st.DrawFn) -> Tree:
    """One path in a world of chance, of which the last observation or the end may not be recorded."""
    actions = draw(st.text("ab", min_size=1, max_size=3))
    steps = [Step(action, draw(observations)) for action in actions]
    steps[-1] = replace(
        steps[-1],
        observation=draw(observations),
        reward=draw(outcomes),
        terminated=draw(st.sampled_from((True, False, None))),
    )
    return merge_branch(Tree("start"), steps, source="policy")[0]


def labels_by_path(tree: Tree) -> dict[tuple[tuple[str, str, bool], ...], tuple[float, ...]]:
    """Labels of every node, by the actions and the observations that lead there."""
    own = [average_outcome(tree), bellman_backup(tree, gamma=0.5)]
    columns = [*own, *(labels_of_actions(tree, column) for column in own)]
    found = {}
    for node in tree.nodes:
        path = tuple((n.step.action, n.step.observation, n.step.terminated is True) for n in tree.path(node.id))
        assert path not in found
        found[path] = tuple(column[node.id] for column in columns)
    return found


def imported(recorded: Sequence[Tree]) -> Tree:
    [(row, _)] = build_task_trees([tree_row(tree, TASK, draws=1) for tree in recorded])
    return tree_from_row(row)


shuffled = st.lists(episodes(), min_size=1, max_size=6).flatmap(
    lambda own: st.tuples(st.just(own), st.permutations(own))
)


@given(shuffled)
def test_labels_do_not_depend_on_the_order_of_episodes(both: tuple[Sequence[Tree], Sequence[Tree]]) -> None:
    one, other = both
    expected = labels_by_path(merge_trees(one))
    for tree in (merge_trees(other), imported(one), imported(other)):
        assert labels_by_path(tree) == {path: pytest.approx(labels) for path, labels in expected.items()}


@given(shuffled, st.integers(0, 6))
def test_files_that_are_merged_make_the_tree_of_their_episodes(
    both: tuple[Sequence[Tree], Sequence[Tree]], cut: int
) -> None:
    one, other = both
    files = [imported(part) for part in (one[:cut], one[cut:]) if part]
    expected = labels_by_path(imported(other))
    assert labels_by_path(merge_trees(files)) == {path: pytest.approx(labels) for path, labels in expected.items()}
