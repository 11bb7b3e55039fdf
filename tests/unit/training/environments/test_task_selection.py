"""Splits of tasks are pinned, disjoint and independent of the order they were found in."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from qguide.qnet.errors import ConfigError
from qguide.training.environment import Task
from qguide.training.environments.alfworld.bundle import AlfWorldConfig
from qguide.training.environments.corridor import CorridorConfig
from qguide.training.environments.registry import build_selected_suite, select_tasks

TASKS = [Task(f"task-{number:02}", "kind", str(number)) for number in range(20)]


@given(seed=st.integers(0, 100), cut=st.integers(1, 19), order=st.integers(0, 100))
def test_slices_of_one_shuffle_are_disjoint_and_complete(seed: int, cut: int, order: int) -> None:
    first = select_tasks(TASKS, shuffle_seed=seed, cut=f":{cut}")
    found = list(TASKS)
    Random(order).shuffle(found)
    rest = select_tasks(found, shuffle_seed=seed, cut=f"{cut}:")
    assert len(first) == cut
    assert sorted(task.id for task in first + rest) == [task.id for task in TASKS]


def test_a_shuffle_depends_on_its_seed() -> None:
    assert select_tasks(TASKS, shuffle_seed=0) != select_tasks(TASKS, shuffle_seed=1)
    assert select_tasks(TASKS, shuffle_seed=1) == select_tasks(TASKS, shuffle_seed=1)


def test_a_limit_spreads_over_what_the_slice_leaves() -> None:
    assert [t.id for t in select_tasks(TASKS, cut="10:", limit=2)] == ["task-10", "task-15"]


def test_a_file_of_ids_selects_and_keeps_its_order(tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    path.write_text("# held back\ncorridor:7\n\ncorridor:3\n")
    suite = build_selected_suite(CorridorConfig(count=10, task_ids=path))
    assert [task.id for task in suite.tasks] == ["corridor:7", "corridor:3"]
    assert suite.make(suite.tasks[0]).reset()


def test_an_id_that_names_no_task_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"1 of 2 .* 20 .*'elsewhere'"):
        select_tasks(TASKS, task_ids=["task-01", "elsewhere"])


def test_a_slice_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'50:60' .* 20 tasks; .* 0:20$"):
        select_tasks(TASKS, cut="50:60")


def test_a_slice_must_be_two_numbers() -> None:
    with pytest.raises(ValidationError, match="slice"):
        AlfWorldConfig(slice="first ten")
