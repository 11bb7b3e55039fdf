"""Suites of ALFWorld games: files below any folder, and generated games."""

import json
import shutil
from pathlib import Path

import pytest

from qguide.qnet.errors import ConfigError
from qguide.training.environments.alfworld.bundle import build_alfworld_suite, build_generated_suite
from qguide.training.environments.registry import select_tasks


def test_ids_are_the_same_from_every_level(games_dir: Path) -> None:
    split = next(path.parent.parent for path in games_dir.rglob("trial_*"))
    ids = [task.id for task in build_alfworld_suite(split).tasks]
    assert ids == [task.id for task in build_alfworld_suite(games_dir).tasks]
    assert ids == sorted(ids)
    assert len(ids) == len(list(games_dir.rglob("game.tw-pddl")))
    assert build_alfworld_suite(split / ids[3]).tasks[0].id == ids[3]


def test_a_limit_spreads_over_the_goal_types(games_dir: Path) -> None:
    tasks = select_tasks(build_alfworld_suite(games_dir).tasks, limit=20)
    assert len(tasks) == 20
    assert len({task.kind for task in tasks}) == 6


def test_unsolvable_games_are_left_out(games_dir: Path, tmp_path: Path) -> None:
    source = build_alfworld_suite(games_dir).tasks[0].source
    for name, solvable in (("a", True), ("b", False)):
        path = tmp_path / name / "trial" / "game.tw-pddl"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({**json.loads(Path(source).read_text()), "solvable": solvable}))
    assert [task.id for task in build_alfworld_suite(tmp_path).tasks] == ["a/trial"]


def test_an_empty_folder_and_twins_are_refused(games_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"solvable .*\.tw-pddl"):
        build_alfworld_suite(tmp_path)
    source = Path(build_alfworld_suite(games_dir).tasks[0].source)
    for split in ("one", "two"):
        (tmp_path / split / "task" / "trial").mkdir(parents=True)
        shutil.copy(source, tmp_path / split / "task" / "trial" / source.name)
    with pytest.raises(ConfigError, match=r"one/task/trial/game\.tw-pddl .*two/task/trial/game\.tw-pddl"):
        build_alfworld_suite(tmp_path)


def test_generated_games_differ_by_seed_and_repeat_by_seed() -> None:
    suite, again = build_generated_suite(7, 3), build_generated_suite(7, 3)
    assert [task.id for task in suite.tasks] == ["generated:7", "generated:8", "generated:9"]
    rooms = [suite.make(task).reset() for task in suite.tasks]
    assert rooms == [again.make(task).reset() for task in again.tasks]
    assert len(set(rooms)) == 3


def test_generated_games_are_written_for_textworld_and_gone_afterwards(
    textworld_installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    real = build_generated_suite(40, 1, "textworld", processes=1)
    twin = build_generated_suite(40, 1)
    assert real.make(real.tasks[0]).reset() == twin.make(twin.tasks[0]).reset()
    assert len(list(tmp_path.rglob("game.tw-pddl"))) == 1
    real.close()
    assert not list(tmp_path.iterdir())
