"""Agents on Anthropic's SDK play ALFWorld; their episodes are recorded under their session ids."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import anthropic
import httpx
import pytest

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.records import OfferRow, Row, TreeRow
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.server.app import create_app
from qguide.server.q_models.build import build_models
from qguide.server.q_models.registry import Models
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import EMBEDDED, SCRIPTED, Settings
from qguide.training.data.runs import read_rows
from qguide.training.environments.alfworld.engines.python import PythonEnvironment
from qguide.training.environments.alfworld.expert.expert import AlfWorldExpert
from qguide.training.environments.alfworld.game.generator import generate_game
from qguide.training.trajectory import parse_action
from tests.support.alfworld_upstream import AlfWorldUpstream
from tests.support.serving import serving_app
from tests.unit.server.conftest import models_of

Kind = TypeVar("Kind", bound=Row)

GAMES = (900_001, 900_002)
"""Seeds of generated games; the embedded models have played neither."""
MOST_STEPS = 40
M = 3
TOOL: Any = {
    "name": "act",
    "description": "Take an action in the game.",
    "input_schema": {"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]},
}


@dataclass
class Game:
    """A game in the Python engine, and what was done in it."""

    seed: int
    taken: list[str] = field(default_factory=list)
    observation: str = ""
    reward: float = 0.0

    def __post_init__(self) -> None:
        self._environment = PythonEnvironment(generate_game(self.seed))
        self.observation = self._environment.reset()

    @property
    def goes_on(self) -> bool:
        return not self._environment.won and len(self.taken) < MOST_STEPS

    def act(self, action: str) -> str:
        result = self._environment.step(action)
        self.taken.append(action)
        self.observation, self.reward = result.observation, result.reward
        return self.observation


def solution(seed: int) -> list[str]:
    """The expert's actions."""
    game, expert = Game(seed), AlfWorldExpert()
    while game.goes_on:
        game.act(parse_action(expert.reply(game.observation)))
    assert game.reward == 1.0
    return game.taken


def play(client: anthropic.Anthropic, game: Game) -> None:
    """Play a game by calls of a tool."""
    messages: Any = [{"role": "user", "content": game.observation}]
    while game.goes_on:
        with client.messages.stream(
            model="demo",
            max_tokens=64,
            messages=messages,
            tools=[TOOL],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            extra_headers={"X-QGuide-Num-Candidates": str(M)},
        ) as stream:
            message = stream.get_final_message()
        call = message.content[-1]
        assert call.type == "tool_use"
        seen = game.act(str(call.input["action"]))
        result = {"type": "tool_result", "tool_use_id": call.id, "content": seen}
        messages += [message.to_param(), {"role": "user", "content": [result]}]


def play_by_text(client: anthropic.Anthropic, game: Game) -> None:
    """Play a game by replies whose last line names the action."""
    messages: Any = [{"role": "user", "content": game.observation}]
    while game.goes_on:
        message = client.messages.create(model=EMBEDDED, max_tokens=64, messages=messages)
        [said] = message.content
        assert said.type == "text"
        seen = game.act(parse_action(said.text))
        messages += [message.to_param(), {"role": "user", "content": seen}]


@contextmanager
def session(url: str, name: str, by: str) -> Iterator[anthropic.Anthropic]:
    """A client that names its session as only a URL or a header can."""
    in_url = by == "URL"
    with anthropic.Anthropic(
        base_url=f"{url}/episodes/{name}" if in_url else url,
        api_key="unused",
        default_headers={} if in_url else {"X-Session-ID": name},
    ) as client:
        yield client


def end(url: str, name: str, game: Game) -> None:
    """Tell the server the outcome of a session, which it records."""
    outcome = {"reward": game.reward, "observation": game.observation}
    closed = httpx.post(f"{url}/v1/episodes/{name}/outcome", json=outcome).json()
    assert (closed["episode_id"], closed["recorded"]) == (name, True), closed
    assert closed["steps"] == len(game.taken)


@contextmanager
def serving_expert(upstream: AlfWorldUpstream, records: Path) -> Iterator[str]:
    """A server in front of the upstream, with a Q model that likes what solves these games."""
    likes = {f'"{action}"': 1.0 for seed in GAMES for action in solution(seed)}

    def build(settings: Settings) -> Models:
        models = build_models(settings)
        liking = models_of(ScriptedPolicy(), ScriptedScorer(likes), DeviceThread())
        models.runtime.thread.close()
        models.runtime.shadow_thread.close()
        return Models(liking.runtime, models.policy, liking.q_models, upstreams=models.upstreams)

    with serving_app(upstream.app()) as behind:
        demo = Upstream.model_validate({"url": f"{behind}/v1", "model": "fake"})
        settings = Settings(policy="demo", upstreams={"demo": demo}, q_models={"q": SCRIPTED}, episodes_dir=records)
        with serving_app(create_app(settings, build=build)) as url:
            yield url


@pytest.mark.parametrize("by", ["header", "URL"])
def test_an_agent_with_a_tool_wins_games_that_are_recorded_under_its_session(tmp_path: Path, by: str) -> None:
    upstream, games = AlfWorldUpstream(), [Game(seed) for seed in GAMES]
    with serving_expert(upstream, tmp_path) as url:
        for game in games:
            name = f"alfworld-{game.seed}"
            with session(url, name, by) as client:
                play(client, game)
            end(url, name, game)
    assert [game.reward for game in games] == [1.0, 1.0]
    assert set(upstream.sessions) == {f"alfworld-{seed}" for seed in GAMES}
    rows = _rows(tmp_path, "trees", TreeRow)
    assert [[_called(node.reply) for node in row.nodes] for row in rows] == [game.taken for game in games]
    assert [row.nodes[-1].reward for row in rows] == [1.0, 1.0]
    assert [row.nodes[-1].observation for row in rows] == [game.observation for game in games]
    offers = _rows(tmp_path, "offers", OfferRow)
    assert [offer.taken for offer in offers] == [node.action for row in rows for node in row.nodes]
    assert max(len(offer.candidates) for offer in offers) == M
    assert len({offer.episode for offer in offers}) == len(games)


def test_the_embedded_models_play_a_game_through_messages(tmp_path: Path) -> None:
    game = Game(GAMES[0])
    settings = Settings(num_candidates=M, episodes_dir=tmp_path, threads=1)
    with serving_app(create_app(settings)) as url:
        with session(url, "by-text", "header") as client:
            play_by_text(client, game)
        end(url, "by-text", game)
    [row] = _rows(tmp_path, "trees", TreeRow)
    assert [parse_action(node.action) for node in row.nodes] == game.taken
    assert row.nodes[-1].reward == game.reward


def _called(reply: Any) -> str:
    [call] = reply.tool_calls
    assert call.name == TOOL["name"]
    return str(json.loads(call.arguments)["action"])


def _rows(folder: Path, name: str, kind: type[Kind]) -> list[Kind]:
    [path] = folder.glob(f"{name}-*.jsonl")
    return list(read_rows(path, kind))
