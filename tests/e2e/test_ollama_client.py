"""Ollama's own client, unmodified, against this server with a fake upstream."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import ollama
import pytest

from qguide.server.app import create_app
from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.http.keys import create_key
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.serving import serving_app

BEST = DEFAULT_REPLIES[2]
M = {"X-QGuide-Num-Candidates": "3"}
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(16)).decode()


@dataclass(frozen=True)
class Server:
    """The server's address, its API key, and the fake upstream behind it."""

    url: str
    key: str
    upstream: FakeUpstream


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    key = create_key(keys, "agent")
    fake = FakeUpstream()
    with serving_app(fake.app()) as behind:
        demo = Upstream.model_validate({"url": f"{behind}/v1", "model": "fake", "retries": 0})
        settings = Settings(
            policy="demo",
            upstreams={"demo": demo},
            q_models={"q": SCRIPTED},
            keys_file=keys,
            timeout_s=30,
            unknown_models="error",
        )
        with serving_app(create_app(settings)) as url:
            yield Server(url, key, fake)


@pytest.fixture
def server(started: Server) -> Server:
    started.upstream.__init__()  # type: ignore[misc]
    return started


@pytest.fixture
def client(server: Server) -> Iterator[ollama.Client]:
    headers = {"Authorization": f"Bearer {server.key}", **M}
    with ollama.Client(server.url, headers=headers) as client:
        yield client


def look(place: str) -> str:
    """Look at a place.

    Args:
        place: the place

    Returns:
        str: what is seen
    """
    return f"nothing on the {place}"


def find() -> list[dict[str, Any]]:
    return [{"role": "user", "content": "find the mug"}]


def test_the_best_candidate_is_the_message(client: ollama.Client, server: Server) -> None:
    options = {"temperature": 0.5, "num_predict": 9, "stop": ["END"], "num_ctx": 4096}
    answer = client.chat("demo:latest", find(), options=options)
    assert (answer.message.role, answer.message.content) == ("assistant", BEST)
    assert (answer.model, answer.done, answer.done_reason) == ("demo", True, "stop")
    assert answer.eval_count
    assert answer.total_duration
    asked = server.upstream.asked[0]
    assert asked["max_tokens"] == 9
    assert asked["stop"] == ["END"]
    assert "num_ctx" not in asked


def test_a_stream_is_the_same_message_in_pieces(client: ollama.Client) -> None:
    lines = list(client.chat("demo", find(), stream=True))
    assert "".join(line.message.content or "" for line in lines) == BEST
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    assert len(lines) > 3
    assert lines[-1].eval_count


def test_a_tool_is_called_and_its_result_sent_back(client: ollama.Client, server: Server) -> None:
    server.upstream.calls = [("look", {"place": "desk"}), ("look", {"place": "shelf"})]
    messages: list[Any] = find()
    called = client.chat("demo", messages, tools=[look])
    [call] = called.message.tool_calls or ()
    assert call.function.name == "look"
    result = look(**call.function.arguments)
    messages += [called.message, {"role": "tool", "content": result, "tool_name": "look"}]
    client.chat("demo", messages, tools=[look])
    said = server.upstream.asked[-1]["messages"]
    [sent] = said[1]["tool_calls"]
    assert sent["function"]["name"] == "look"
    assert said[2] == {"role": "tool", "tool_call_id": sent["id"], "content": result}


def test_a_stream_has_calls(client: ollama.Client, server: Server) -> None:
    server.upstream.calls = [("look", {"place": "desk"})]
    lines = list(client.chat("demo", find(), tools=[look], stream=True))
    calls = [call for line in lines for call in line.message.tool_calls or ()]
    assert [(call.function.name, call.function.arguments) for call in calls] == [("look", {"place": "desk"})]


def test_images_and_schemas_reach_the_upstream(client: ollama.Client, server: Server) -> None:
    schema = {"type": "object", "properties": {"place": {"type": "string"}}}
    message = {"role": "user", "content": "where is this?", "images": [PIXEL]}
    client.chat("demo", [message], format=schema)
    asked = server.upstream.asked[0]
    [text, image] = asked["messages"][0]["content"]
    assert text == {"type": "text", "text": "where is this?"}
    assert image["image_url"]["url"] == f"data:image/png;base64,{PIXEL}"
    assert asked["response_format"]["json_schema"]["schema"] == schema


def test_policies_are_listed_and_shown(client: ollama.Client) -> None:
    assert [model.model for model in client.list().models] == ["demo"]
    shown = client.show("demo")
    assert shown.capabilities == ["completion", "tools"]


def test_errors_are_the_clients_own(client: ollama.Client, server: Server) -> None:
    with pytest.raises(ollama.ResponseError, match="'other'") as unknown:
        client.chat("other", find())
    assert unknown.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match=r"^messages\[\d\] .*tool_name"):
        client.chat("demo", [*find(), {"role": "tool", "content": "x", "tool_name": "look"}])
    server.upstream.fault = "500"
    with pytest.raises(ollama.ResponseError):
        list(client.chat("demo", find(), stream=True))


def test_a_wrong_key_is_refused(server: Server) -> None:
    answer = httpx.get(f"{server.url}/api/tags", headers={"Authorization": "Bearer qg-wrong"})
    assert answer.status_code == 401
    assert isinstance(answer.json()["error"], str)


def test_a_malformed_body_and_a_path_that_is_not_served(server: Server) -> None:
    with httpx.Client(headers={"Authorization": f"Bearer {server.key}"}) as http:
        malformed = http.post(f"{server.url}/api/chat", json={"model": "demo", "messages": 1})
        unserved = http.post(f"{server.url}/api/embed", json={"model": "demo"})
        told = http.get(f"{server.url}/api/version").json()
    assert malformed.status_code == 400
    assert "messages" in malformed.json()["error"]
    assert unserved.status_code == 404
    assert isinstance(unserved.json()["error"], str)
    assert [int(part) for part in told["version"].split(".")] >= [0, 6, 4]
