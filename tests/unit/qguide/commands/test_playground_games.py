"""Games of an environment for the playground's race, and their route."""

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from qguide.commands.playground_games import HELD_OUT, build_games, games_of
from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.server.app import create_app
from qguide.server.http.keys import create_key
from qguide.server.own_bodies.schemas import ChatMessage
from qguide.server.routes.pages import GAMES_AT_ONCE, MOST_REPLIES, GameAnswer, Games
from qguide.training.environments.corridor import Corridor
from tests.unit.server.conftest import FAKES

GAME = {"game": 0, "replies": []}


def corridors(**table: str | int | bool) -> Games:
    games = build_games({"name": "fake", **table})
    assert games is not None
    return games


def replies_of(seed: int) -> list[str]:
    return [f"Thought: on.\nAction: {action}" for action in Corridor.of_seed(seed).solution()]


def test_a_game_is_played_from_its_start_with_all_replies() -> None:
    games = corridors(count=4)
    assert (games.name, games.count) == ("fake", 4)
    solution = replies_of(3)
    fresh = games.play(3, [])
    assert "Your task is to:" in fresh.opening[0].to_message().content
    assert (fresh.observation, fresh.ended, fresh.won) == ("", False, False)
    underway = games.play(3, solution[:-1])
    assert (underway.ended, underway.won) == (False, False)
    assert underway.observation
    over = games.play(3, [*solution, "Action: go left"])
    assert (over.observation, over.reward, over.ended, over.won) == ("You open the door.", 1.0, True, True)


def test_no_table_is_no_games_and_a_wrong_one_is_told() -> None:
    assert build_games({}) is None
    assert games_of(FAKES) is None
    assert games_of(FAKES.model_copy(update={"policy": "embedded", "playground": False})) is None
    known = games_of(FAKES.model_copy(update={"policy": "embedded"}))
    assert known is not None
    assert known.name == "alfworld"
    with pytest.raises(ConfigError, match=r"'chess' .*alfworld, "):
        build_games({"name": "chess"})
    with pytest.raises(ValidationError, match="counts"):
        build_games({"name": "fake", "counts": 3})
    with pytest.raises(ConfigError, match=r"intercode-sql-tools .*QGUIDE_PLAYGROUND_GAMES"):
        build_games({"name": "intercode-sql-tools"})


def test_alfworlds_games_are_held_out_unless_others_are_named() -> None:
    """Games of the same number are the same game where they have the same seed."""
    held_out = HELD_OUT["alfworld"]["first_seed"]
    default, named, other = (
        build_games({"name": "alfworld", "count": 2} | more)
        for more in ({}, {"first_seed": held_out}, {"first_seed": 0})
    )
    assert default is not None
    assert named is not None
    assert other is not None
    first = default.play(0, []).opening
    assert first == named.play(0, []).opening
    assert first != other.play(0, []).opening


def test_the_route_plays_within_its_limits(tmp_path: Path) -> None:
    key = create_key(tmp_path / "keys.json", "ada")
    settings = FAKES.model_copy(update={"keys_file": tmp_path / "keys.json"})
    app = create_app(settings, games=corridors(count=4))
    with TestClient(app, "http://127.0.0.1") as client:
        body = {"game": 3, "replies": replies_of(3)}
        assert client.post("/v1/games/play", json=body).status_code == 401
        client.headers["X-API-Key"] = key
        answer = client.post("/v1/games/play", json=body).json()
        assert (answer["won"], answer["ended"], answer["reward"]) == (True, True, 1.0)
        assert [message["role"] for message in answer["opening"]] == ["user"]
        refused = client.post("/v1/games/play", json={"game": 4, "replies": []})
        assert refused.status_code == 400
        assert "game is 4; this server has games 0 to 3" in refused.json()["error"]["message"]
        long = {"game": 0, "replies": ["look"] * (MOST_REPLIES + 1)}
        assert client.post("/v1/games/play", json=long).status_code == 422
        offered = client.get("/playground/abilities").json()["games"]
        assert offered == {"name": "fake", "count": 4, "most_replies": MOST_REPLIES}


def test_a_server_without_games_has_no_route() -> None:
    with TestClient(create_app(FAKES), "http://127.0.0.1") as client:
        assert client.post("/v1/games/play", json={"game": 0, "replies": []}).status_code == 404


class HeldGames:
    """Games that wait for their gate; counts those that are played at the same time."""

    name, count = "held", 1

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.playing = Counter[str]()
        self._counting = threading.Lock()

    def play(self, game: int, replies: Sequence[str]) -> GameAnswer:
        """Wait for the gate."""
        with self._counting:
            self.playing["now"] += 1
            self.playing["most"] = max(self.playing["most"], self.playing["now"])
        assert self.gate.wait(60)
        with self._counting:
            self.playing["now"] -= 1
            self.playing["ended"] += 1
        opening = [ChatMessage(role="user", content="Find the mug.")]
        return GameAnswer(opening=opening, observation="", reward=0.0, ended=False, won=False)


class LostGames(HeldGames):
    """Games whose engine is gone."""

    def play(self, game: int, replies: Sequence[str]) -> GameAnswer:
        """Fail."""
        raise EnvironmentFailureError("the game's engine has ended; play again")


def test_a_game_that_fails_is_told_as_such() -> None:
    with TestClient(create_app(FAKES, games=LostGames()), "http://127.0.0.1") as client:
        response = client.post("/v1/games/play", json=GAME)
    assert response.status_code == 502
    error = response.json()["error"]
    assert error["code"] == "environment_failed"
    assert error["message"] == "the game's engine has ended; play again"


async def test_games_of_callers_that_hung_up_count_until_they_end() -> None:
    games = HeldGames()
    app = create_app(FAKES, games=games)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
    ):
        for _ in range(GAMES_AT_ONCE + 2):
            call = asyncio.create_task(client.post("/v1/games/play", json=GAME))
            await asyncio.sleep(0.05)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        last = asyncio.create_task(client.post("/v1/games/play", json=GAME))
        games.gate.set()
        assert (await last).status_code == 200
    assert games.playing["most"] == GAMES_AT_ONCE
