"""A written game is the same game: read back, and in the real engine."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from qguide.qnet.errors import InvalidGameError
from qguide.training.environment import Task
from qguide.training.environments.alfworld.bundle import AlfWorldSuite, build_generated_suite
from qguide.training.environments.alfworld.engines.python import PythonEnvironment
from qguide.training.environments.alfworld.expert.expert import AlfWorldExpert
from qguide.training.environments.alfworld.game.game import GOAL_KINDS, AlfWorldGame, Goal, Item, Receptacle, load_game
from qguide.training.environments.alfworld.game.game_files import game_data, write_game
from qguide.training.environments.alfworld.game.generator import generate_game
from qguide.training.trajectory import parse_action

MAX_STEPS = 40
SEEDS = 30

TINY = AlfWorldGame(
    task="Your task is to: put some mug on desk.",
    goal=Goal("pick_and_place_simple", "mug", "desk"),
    start="loc 4",
    receptacles=(
        Receptacle("desk 1", "desk", "loc 2"),
        Receptacle("drawer 2", "drawer", "loc 2", openable=True, opened=True, contents=("mug 1",)),
        Receptacle("drawer 1", "drawer", "loc 1", openable=True),
        Receptacle("sinkbasin 1", "sinkbasin", "loc 3", contents=("sink 1",)),
    ),
    items=(
        Item("mug 2", "mug", None, pickupable=True, inner=("pen 1",)),
        Item("mug 1", "mug", "loc 2", pickupable=True, states=frozenset({"hot", "clean"})),
        Item("pen 1", "pen", "loc 2", pickupable=True),
        Item("sink 1", "sink", "loc 3"),
    ),
    can_contain=frozenset({("desk", "mug"), ("drawer", "pen")}),
)


def test_generated_games_are_read_back_but_for_the_number_of_their_start(tmp_path: Path) -> None:
    kinds = set()
    for seed in range(SEEDS):
        game, path = generate_game(seed), tmp_path / str(seed) / "game.tw-pddl"
        write_game(game, path)
        assert replace(load_game(path), start=game.start) == game
        kinds.add(game.goal.kind)
    assert kinds == set(GOAL_KINDS)


def test_everything_that_a_game_can_tell_is_written(tmp_path: Path) -> None:
    write_game(TINY, tmp_path / "game.tw-pddl")
    assert load_game(tmp_path / "game.tw-pddl") == TINY


def test_a_game_is_written_as_it_was_read(games_dir: Path, tmp_path: Path) -> None:
    for path in sorted(games_dir.rglob("game.tw-pddl"))[::20]:
        game = load_game(path)
        write_game(game, tmp_path / "game.tw-pddl")
        assert load_game(tmp_path / "game.tw-pddl") == game


def test_a_file_has_the_keys_of_a_real_one(real_games_dir: Path) -> None:
    real = json.loads(next(real_games_dir.rglob("game.tw-pddl")).read_text())
    assert game_data(TINY).keys() == real.keys()
    assert game_data(TINY)["solvable"] is True


@pytest.mark.parametrize(
    ("game", "message"),
    [
        (replace(TINY, receptacles=TINY.receptacles[::-1]), "game's receptacles;"),
        (replace(TINY, items=TINY.items[1::-1] + TINY.items[2:]), "game's items;"),
        (replace(TINY, receptacles=TINY.receptacles[:2]), "game's receptacles;"),
        (replace(TINY, heaters=frozenset({"toaster"})), "game's heaters;"),
        (replace(TINY, task='Your task is to: say "mug".'), "game's task;"),
        (replace(TINY, start="home"), "^'home' .*999; .*'cup 2'"),
    ],
)
def test_what_the_format_cannot_express_is_refused(game: AlfWorldGame, message: str) -> None:
    with pytest.raises(InvalidGameError, match=message):
        game_data(game)


def test_a_refused_game_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidGameError):
        write_game(replace(TINY, start="home"), tmp_path / "game.tw-pddl")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def real_engine(textworld_installed: None) -> Iterator[AlfWorldSuite]:
    """The first generated games in the real engine."""
    suite = build_generated_suite(0, SEEDS, "textworld", processes=1)
    yield suite
    suite.close()


def test_both_engines_agree_on_every_step_of_the_expert(real_engine: AlfWorldSuite) -> None:
    # TextWorld takes seconds to load a big game, so each goal type is played in its smallest.
    smallest = {task.kind: task for task in sorted(real_engine.tasks, key=size, reverse=True)}
    assert smallest.keys() == set(GOAL_KINDS)
    for task in smallest.values():
        assert_same_play(real_engine, task)


def game_of(task: Task) -> AlfWorldGame:
    """The game of a generated task."""
    return generate_game(int(task.source.removeprefix("generated:")))


def size(task: Task) -> int:
    """About how many facts a game has."""
    game = game_of(task)
    return len(game.receptacles) * len(game.items)


def assert_same_play(real_engine: AlfWorldSuite, task: Task) -> None:
    """The expert wins in both engines, which say the same all the way."""
    real, twin, expert = real_engine.make(task), PythonEnvironment(game_of(task)), AlfWorldExpert()
    observation = real.reset()
    assert observation == twin.reset()
    for _ in range(MAX_STEPS):
        assert real.admissible_actions() == twin.admissible_actions()
        action = parse_action(expert.reply(observation))
        result = real.step(action)
        assert result == twin.step(action)
        observation = result.observation
        if result.terminated:
            break
    assert real.won
    real.close()
