"""Trees of many tasks, read one at a time."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from qguide.qnet.errors import RecordError
from qguide.qnet.records import NodeRow, TreeRow
from qguide.training.data.task_trees import TaskTrees
from tests.support.decision_groups import candidate, groups_row

LONG = "a wall, a door, " * 1_000


def explored(task: str, *, observation: str = "", draws: int = 2) -> TreeRow:
    node = NodeRow(
        id=1,
        parent=0,
        depth=1,
        action="look",
        observation=observation,
        reward=1.0,
        terminated=True,
        valid=True,
        source="policy",
    )
    return TreeRow(
        task_id=task,
        kind="room",
        environment="rooms",
        first_observation="You are in a room.",
        nodes=(node,),
        draws=draws,
    )


def written(path: Path, rows: Iterator[TreeRow]) -> Path:
    with path.open("w") as file:
        file.writelines(row.model_dump_json() + "\n" for row in rows)
    return path


def test_one_tree_is_in_memory_at_a_time(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", (explored(f"task-{n}", observation=LONG) for n in range(400)))
    tracemalloc.start()
    try:
        trees = TaskTrees([path], min_reward=0, max_reward=1)
        count = sum(1 for _ in trees)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == len(trees) == 400
    assert peak < path.stat().st_size / 4


def test_rows_of_one_task_that_stand_apart_are_one_tree(tmp_path: Path) -> None:
    rows = (explored(task, observation=where) for task, where in [("a", "left"), ("b", "up"), ("a", "right")])
    trees = list(TaskTrees([written(tmp_path / "rows.jsonl", rows)], min_reward=0, max_reward=1))
    assert [(task.row.task_id, len(task.tree.nodes)) for task in trees] == [("a", 2), ("b", 1)]


def test_an_exploration_that_stands_twice_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", iter([explored("a"), explored("b"), explored("a")]))
    trees = TaskTrees([path], min_reward=0, max_reward=1)
    with pytest.raises(RecordError, match=r"rows\.jsonl, task a: .*twice"):
        list(trees)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", iter([explored("a"), explored("b")]))
    trees = TaskTrees([path], min_reward=0, max_reward=1)
    path.write_text("x" + path.read_text())
    with pytest.raises(RecordError, match=r"rows\.jsonl .*changed"):
        list(trees)


def test_decision_groups_are_no_trees_of_whole_episodes(tmp_path: Path) -> None:
    row = groups_row(([candidate("Action: look"), candidate("Action: go")], 0))
    path = written(tmp_path / "rows.jsonl", iter([row]))
    with pytest.raises(RecordError, match=r"rows\.jsonl, task t: .*`groups`"):
        TaskTrees([path], min_reward=0, max_reward=1)
