"""An agent on Anthropic's SDK plays episodes with a tool, recorded under its session ids."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anthropic
import httpx
import pytest

from qnet.device.device_thread import DeviceThread
from qnet.policies.scripted import ScriptedPolicy
from qnet.records import OfferRow, Row, TreeRow
from qnet.scoring.scripted import ScriptedScorer
from server.app import create_app
from server.chat.fake_openai import FakeUpstream
from server.q_models.build import Models, build_models
from server.settings.settings import SCRIPTED, Settings, Upstream
from tests.support.serving import serving_app
from tests.unit.server.conftest import models_of
from training.data.runs import read_rows
from training.environments.corridor import Corridor, CorridorEnvironment

Kind = TypeVar("Kind", bound=Row)

ACTIONS = ("look", "go left", "go right", "take key", "open door")
LIKED = {'"go left"': 0.1, '"go right"': 0.2, '"take key"': 0.5, '"open door"': 1.0}
"""Q of an action; with it alone an agent wins the corridors of these seeds."""
SEEDS = (17, 25, 49)
MOST_STEPS = 8
NEXT = {"type": "text", "text": "What do you do next?"}


@dataclass(frozen=True)
class Server:
    """The server's address, its folder of records, and the fake upstream behind it."""

    url: str
    records: Path
    upstream: FakeUpstream


def build(settings: Settings) -> Models:
    """The upstream's policy, and a Q model that likes doors."""
    models = build_models(settings)
    liking = models_of(ScriptedPolicy(), ScriptedScorer(LIKED), DeviceThread())
    models.runtime.thread.close()
    models.runtime.shadow_thread.close()
    return Models(liking.runtime, models.policy, liking.q_models, upstreams=models.upstreams)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    fake = FakeUpstream()
    with serving_app(fake.app()) as behind:
        demo = Upstream.model_validate({"url": f"{behind}/v1", "model": "fake"})
        settings = Settings(
            policy="demo", upstreams={"demo": demo}, q_models={"q": SCRIPTED}, episodes_dir=tmp_path
        )
        with serving_app(create_app(settings, build=build)) as url:
            yield Server(url, tmp_path, fake)


def admissible(corridor: Corridor, taken: Sequence[str]) -> list[str]:
    """Actions that would do something now, as text games list them."""
    found = []
    for action in ACTIONS:
        environment = CorridorEnvironment(corridor)
        environment.reset()
        for before in taken:
            environment.step(before)
        if environment.step(action).valid:
            found.append(action)
    return found


def tool(actions: Sequence[str]) -> dict[str, Any]:
    properties = {"action": {"type": "string", "enum": list(actions)}}
    schema = {"type": "object", "properties": properties, "required": ["action"]}
    return {"name": "act", "description": "Take an action.", "input_schema": schema}


def play(client: anthropic.Anthropic, corridor: Corridor) -> tuple[list[str], float, str]:
    """One episode: the actions taken, the reward and the last observation."""
    environment = CorridorEnvironment(corridor)
    messages: Any = [{"role": "user", "content": environment.reset()}]
    taken: list[str] = []
    for _ in range(MOST_STEPS):
        tools: Any = [tool(admissible(corridor, taken))]
        with client.messages.stream(
            model="demo",
            max_tokens=64,
            messages=messages,
            tools=tools,
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            extra_headers={"X-QGuide-Num-Candidates": str(len(ACTIONS))},
        ) as stream:
            message = stream.get_final_message()
        [call] = message.content
        assert call.type == "tool_use"
        taken.append(str(call.input["action"]))
        result = environment.step(taken[-1])
        if result.terminated:
            break
        seen = {"type": "tool_result", "tool_use_id": call.id, "content": result.observation}
        messages += [message.to_param(), {"role": "user", "content": [seen, NEXT]}]
    return taken, result.reward, result.observation


@pytest.mark.parametrize("by", ["header", "URL"])
def test_an_agent_plays_episodes_that_are_recorded_under_its_session(
    server: Server, by: str
) -> None:
    for seed in SEEDS:
        corridor, session = Corridor.of_seed(seed), f"corridor-{seed}"
        in_url = by == "URL"
        with anthropic.Anthropic(
            base_url=f"{server.url}/episodes/{session}" if in_url else server.url,
            api_key="unused",
            default_headers={} if in_url else {"X-Session-ID": session},
        ) as client:
            taken, reward, seen = play(client, corridor)
        assert (taken, reward) == (corridor.solution(), 1.0)
        outcome = {"reward": reward, "observation": seen}
        closed = httpx.post(f"{server.url}/v1/episodes/{session}/outcome", json=outcome).json()
        assert (closed["recorded"], closed["steps"]) == (True, len(taken)), closed
    assert set(server.upstream.sessions) == {f"corridor-{seed}" for seed in SEEDS}
    rows = _rows(server.records, "trees", TreeRow)
    assert [_actions(row) for row in rows] == [_calls(seed) for seed in SEEDS]
    offers = _rows(server.records, "offers", OfferRow)
    assert len(offers) == sum(map(len, map(_calls, SEEDS)))
    assert len({offer.episode for offer in offers}) == len(SEEDS)


def _rows(folder: Path, name: str, kind: type[Kind]) -> list[Kind]:
    [path] = folder.glob(f"{name}-*.jsonl")
    return list(read_rows(path, kind))


def _actions(row: TreeRow) -> list[str]:
    return [node.action for node in row.nodes]


def _calls(seed: int) -> list[str]:
    """The solution of a corridor as lines of calls."""
    solution = Corridor.of_seed(seed).solution()
    return [f'Action: act({{"action": "{action}"}})' for action in solution]
