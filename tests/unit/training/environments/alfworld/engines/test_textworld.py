"""The real engine in worker processes: the same texts, and a clean end."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qguide.qnet.errors import EnvironmentFailureError
from qguide.training.environments.alfworld.engines.textworld import BANNER, EnginePool, TextWorldEnvironment
from qguide.training.processes import worker as worker_module

pytestmark = pytest.mark.usefixtures("textworld_installed")

ACTIONS = ("look", "inventory", "go to bed 1", "go to desk 1", "fly", "use desklamp 1", "look")
STOCK = """
import json, sys
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld import EnvInfos
from textworld.envs.pddl import PddlEnv
env = AlfredDemangler(PddlEnv(EnvInfos(won=True, admissible_commands=True)))
game, *actions = sys.argv[1:]
env.load(game)
states = [env.reset()] + [env.step(action)[0] for action in actions]
print(json.dumps([[s.feedback, s["admissible_commands"]] for s in states]))
"""


@pytest.fixture
def games(generated_games_dir: Path) -> list[Path]:
    """Paths of games in a fixed order."""
    return sorted(generated_games_dir.rglob("game.tw-pddl"))


@pytest.fixture
def pool() -> Iterator[EnginePool]:
    """One process, replaced after two games."""
    pool = EnginePool(processes=1, games_per_process=2)
    yield pool
    pool.close()


@pytest.mark.parametrize("games_dir", ["generated", pytest.param("real", marks=pytest.mark.slow)], indirect=True)
def test_remembered_work_changes_nothing_that_the_engine_says(games_dir: Path, pool: EnginePool) -> None:
    game = min(games_dir.rglob("game.tw-pddl"))
    command = [sys.executable, "-P", "-c", STOCK, str(game), *ACTIONS]
    stock = subprocess.run(command, capture_output=True, check=True, encoding="utf-8").stdout
    for _ in range(2):  # the second episode finds everything remembered
        environment = TextWorldEnvironment(pool, game)
        ours = [[BANNER + environment.reset(), environment.admissible_actions()]]
        for action in ACTIONS:
            said = environment.step(action).observation
            ours.append([said, environment.admissible_actions()])
        environment.close()
        assert ours == json.loads(stock)


def test_a_worker_is_replaced_once_its_games_are_spent_and_its_episodes_over(
    games: list[Path], pool: EnginePool
) -> None:
    oldest = TextWorldEnvironment(pool, games[0])
    oldest.reset()
    worker = pool.acquire(str(games[1]))
    successor = pool.acquire(str(games[2]))
    assert successor is not worker
    assert oldest.step("look").valid
    pool.release(worker, 999)
    assert worker.alive
    oldest.close()
    assert not worker.alive
    assert successor.alive


def test_a_killed_worker_fails_its_episode_and_the_next_one_gets_another(games: list[Path], pool: EnginePool) -> None:
    environment = TextWorldEnvironment(pool, games[0])
    environment.reset()
    pool.acquire(str(games[0])).close()
    with pytest.raises(EnvironmentFailureError, match="closed"):
        environment.step("look")
    environment.close()
    fresh = TextWorldEnvironment(pool, games[0])
    assert fresh.reset().startswith("You are in")
    fresh.close()


def test_a_game_that_the_engine_dislikes_is_an_error_and_no_dead_process(
    tmp_path: Path, games: list[Path], pool: EnginePool
) -> None:
    broken = tmp_path / "game.tw-pddl"
    broken.write_text(json.dumps({**json.loads(games[0].read_text()), "pddl_problem": "(define"}))
    with pytest.raises(EnvironmentFailureError, match=r"^reset .*TextWorld: ParseError"):
        TextWorldEnvironment(pool, broken).reset()
    environment = TextWorldEnvironment(pool, games[0])
    assert environment.reset().startswith("You are in")
    environment.close()


def test_an_answer_that_does_not_come_in_time_kills_the_worker(games: list[Path]) -> None:
    hasty = EnginePool(processes=1, timeout_s=0.001)
    with pytest.raises(EnvironmentFailureError, match=r"within 0\.001 s"):
        TextWorldEnvironment(hasty, games[0]).reset()
    hasty.close()


def test_games_that_follow_each_other_in_one_library_are_as_new_and_end_well(
    games: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_END_S", 120.0)  # the machine may be busy
    pool = EnginePool(processes=1)
    worker = pool.acquire(str(games[0]))
    said: list[list[str]] = []
    for game in (*games[:12], games[0]):  # more than are kept idle
        environment = TextWorldEnvironment(pool, game)
        said.append([environment.reset(), *environment.admissible_actions()])
        environment.close()
    assert said[0] == said[-1]
    assert len({texts[0] for texts in said}) > 6
    pool.close()
    assert worker._process.returncode == 0
