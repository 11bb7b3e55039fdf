"""Generated games: fixed for every seed, winnable, and varied."""

import json
from dataclasses import asdict, replace
from hashlib import sha256

import pytest

from qguide.qnet.errors import EnvironmentFailureError
from qguide.training.environments.alfworld.engines.python import PythonEnvironment
from qguide.training.environments.alfworld.expert.expert import AlfWorldExpert
from qguide.training.environments.alfworld.game.game import GOAL_KINDS, AlfWorldGame
from qguide.training.environments.alfworld.game.generator import NOVELTY, draw_game, generate_game
from qguide.training.environments.alfworld.game.statistics import RoomStatistics, load_statistics
from qguide.training.trajectory import parse_action

MAX_STEPS = 40
LEAST_WIN_RATE = 0.97
GAMES_0_TO_199 = "acf34b408a6c473ddabd4a6d680ea9b1e6b37791b2845936fea15e8c6b7fb6d9"


@pytest.fixture(scope="module")
def games() -> list[AlfWorldGame]:
    """The games of the first 200 seeds."""
    return [generate_game(seed) for seed in range(200)]


def test_the_games_of_every_seed_stay_those_that_the_embedded_models_learned_on(games: list[AlfWorldGame]) -> None:
    digest = sha256()
    for game in games:
        digest.update(json.dumps(asdict(game), default=sorted, sort_keys=True).encode())
    assert digest.hexdigest() == GAMES_0_TO_199


def test_every_goal_type_comes_up_about_as_often(games: list[AlfWorldGame]) -> None:
    kinds = [game.goal.kind for game in games]
    assert all(kinds.count(kind) >= len(games) / len(GOAL_KINDS) / 2 for kind in GOAL_KINDS)


def test_hardly_two_games_are_alike(games: list[AlfWorldGame]) -> None:
    rooms = {tuple((r.name, r.location, r.contents) for r in game.receptacles) for game in games}
    assert len(rooms) == len(games)
    assert len({game.task for game in games}) > len(games) / 2


def test_the_expert_wins(games: list[AlfWorldGame]) -> None:
    assert sum(wins(game) for game in games) >= LEAST_WIN_RATE * len(games)


def wins(game: AlfWorldGame) -> bool:
    """True if the expert wins the game in the Python engine."""
    environment, expert = PythonEnvironment(game), AlfWorldExpert()
    observation = environment.reset()
    for _ in range(MAX_STEPS):
        result = environment.step(parse_action(expert.reply(observation)))
        if result.terminated:
            break
        observation = result.observation
    return environment.won


def test_some_targets_were_never_counted_with_their_object(games: list[AlfWorldGame]) -> None:
    goals = load_statistics().goals
    placing = [game.goal for game in games if game.goal.receptacle_kind is not None]
    novel = [
        goal
        for goal in placing
        if all(goal.receptacle_kind not in items.get(goal.item_kind, {}) for items in goals[goal.kind].values())
    ]
    assert 0 < len(novel) < NOVELTY * len(placing)


def test_the_room_is_named_beside_its_game() -> None:
    room, game = draw_game(3)
    kitchen = load_statistics().rooms[room].receptacle_numbers
    assert {receptacle.kind for receptacle in game.receptacles} <= set(kitchen)
    assert game == generate_game(3)


def test_statistics_without_room_for_their_goals_are_refused() -> None:
    known = load_statistics()
    empty = {room: RoomStatistics(games=1, layouts=[({"bed": 1}, 1)]) for room in known.rooms}
    with pytest.raises(EnvironmentFailureError, match=r"^seed 0: .* 200 "):
        draw_game(0, statistics=replace(known, rooms=empty))
