"""Suites find games wherever they lie below a folder."""

import json
import shutil
from pathlib import Path

import pytest

from qnet.errors import ConfigError, EnvironmentFailureError
from training.environments.alfworld.suite import (
    AlfWorldSuite,
    build_alfworld_suite,
    build_generated_suite,
)
from training.environments.base import Task


def test_ids_are_the_same_from_every_level(real_games_dir: Path) -> None:
    split = next(path.parent.parent for path in real_games_dir.rglob("trial_*"))
    ids = [task.id for task in build_alfworld_suite(split).tasks]
    assert ids == [task.id for task in build_alfworld_suite(real_games_dir).tasks]
    assert ids == sorted(ids)
    assert len(ids) == 140
    assert build_alfworld_suite(split / ids[3]).tasks[0].id == ids[3]


def test_a_limit_spreads_over_the_goal_types(real_games_dir: Path) -> None:
    tasks = build_alfworld_suite(real_games_dir, limit=20).tasks
    assert len(tasks) == 20
    assert len({task.kind for task in tasks}) == 6


def test_unsolvable_games_are_left_out(real_games_dir: Path, tmp_path: Path) -> None:
    source = build_alfworld_suite(real_games_dir, limit=1).tasks[0].source
    for name, solvable in (("a", True), ("b", False)):
        path = tmp_path / name / "trial" / "game.tw-pddl"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({**json.loads(Path(source).read_text()), "solvable": solvable}))
    assert [task.id for task in build_alfworld_suite(tmp_path).tasks] == ["a/trial"]


def test_an_empty_folder_and_twins_are_refused(real_games_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no solvable"):
        build_alfworld_suite(tmp_path)
    source = Path(build_alfworld_suite(real_games_dir, limit=1).tasks[0].source)
    for split in ("one", "two"):
        (tmp_path / split / "task" / "trial").mkdir(parents=True)
        shutil.copy(source, tmp_path / split / "task" / "trial" / source.name)
    with pytest.raises(ConfigError, match="are one task"):
        build_alfworld_suite(tmp_path)


def test_generated_games_differ_by_seed_and_repeat_by_seed() -> None:
    suite, again = build_generated_suite(7, 3), build_generated_suite(7, 3)
    assert [task.id for task in suite.tasks] == ["generated:7", "generated:8", "generated:9"]
    rooms = [suite.make(task).reset() for task in suite.tasks]
    assert rooms == [again.make(task).reset() for task in again.tasks]
    assert len(set(rooms)) == 3


def test_generated_games_have_no_file_for_textworld() -> None:
    suite = AlfWorldSuite("generated", [Task("g", "k", "generated:1")], "textworld")
    with pytest.raises(EnvironmentFailureError, match="engine=python"):
        suite.make(suite.tasks[0])
