"""Generated games have the folders of real ones, and are never written twice."""

from pathlib import Path

from typer.testing import CliRunner

from qguide.cli import app
from qguide.training.environments.alfworld.bundle import GAME_FILE, build_alfworld_suite, write_games
from qguide.training.environments.alfworld.game.game import GOAL_KINDS
from qguide.training.environments.alfworld.game.generator import draw_game
from tools.alfworld_statistics import room_kind


def times(folder: Path) -> dict[Path, int]:
    """Modification time of each game file."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob(GAME_FILE)}


def test_a_suite_finds_the_games_by_goal_and_room(tmp_path: Path) -> None:
    write_games(tmp_path, count=12, first_seed=0)
    tasks = {Path(task.source): task for task in build_alfworld_suite(tmp_path).tasks}
    assert len(tasks) == 12
    for path, task in tasks.items():
        seed = int(path.parent.name.removeprefix("trial_seed"))
        room, game = draw_game(seed)
        goal, item, _, target, _ = task.id.split("/")[0].split("-")
        assert goal == task.kind == game.goal.kind
        assert item.lower() == game.goal.item_kind
        assert target.lower() == (game.goal.receptacle_kind or game.goal.lamp_kind)
        assert room_kind(path) == room
    assert {task.kind for task in tasks.values()} <= set(GOAL_KINDS)


def test_a_second_run_writes_only_what_is_missing(tmp_path: Path) -> None:
    assert write_games(tmp_path, count=4, first_seed=3) == {"written": 4, "kept": 0}
    before = times(tmp_path)
    lost = min(before)
    lost.rename(lost.with_name(f"{GAME_FILE}.tmp"))  # as a kill leaves it
    assert write_games(tmp_path, count=6, first_seed=3) == {"written": 3, "kept": 3}
    after = times(tmp_path)
    assert len(after) == 6
    assert {path: after[path] for path in before if path != lost}.items() <= before.items()
    assert not list(tmp_path.rglob("*.tmp"))


def test_other_seeds_in_the_folder_do_not_count(tmp_path: Path) -> None:
    write_games(tmp_path, count=2, first_seed=0)
    assert write_games(tmp_path, count=2, first_seed=2) == {"written": 2, "kept": 0}


def test_the_command_tells_what_it_wrote(tmp_path: Path) -> None:
    arguments = ["generate", "--count", "2", "--seed", "9", "--output", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert "written: 2" in result.output
    names = sorted(path.parent.name for path in tmp_path.rglob(GAME_FILE))
    assert names == ["trial_seed00000009", "trial_seed00000010"]
