"""The fake upstream that ships, on its own."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from qguide.cli import app
from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream

USER = {"role": "user", "content": "find the mug"}
DONE = {"role": "assistant", "content": "done"}
PROPERTIES = {
    "place": {"enum": ["desk", "shelf"]},
    "count": {"type": "integer"},
    "loud": {"type": "boolean"},
    "words": {"type": "array"},
    "more": {"type": "object"},
    "why": {"type": "string"},
}


def ask(fake: FakeUpstream, **body: Any) -> Any:
    with TestClient(fake.app()) as client:
        return client.post("/v1/chat/completions", json={"messages": [USER]} | body)


def test_its_script_goes_round_turn_by_turn() -> None:
    fake = FakeUpstream()
    told = [ask(fake, n=4).json(), ask(fake, messages=[USER, DONE, USER]).json()]
    said = [[c["message"]["content"] for c in answer["choices"]] for answer in told]
    assert said == [[*DEFAULT_REPLIES, DEFAULT_REPLIES[0]], [DEFAULT_REPLIES[1]]]
    assert len(fake.asked) == 2


@pytest.mark.parametrize("tools", [[{}], [3], {"function": {}}, [{"type": "function"}]])
def test_it_refuses_what_makes_no_sense(tools: Any) -> None:
    answer = ask(FakeUpstream(), tools=tools)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_it_calls_tools_with_arguments_of_the_right_kinds_until_one_has_answered() -> None:
    parameters = {"type": "object", "properties": PROPERTIES}
    tool = {"type": "function", "function": {"name": "go", "parameters": parameters}}
    [choice] = ask(FakeUpstream(), tools=[tool], seed=1).json()["choices"]
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["arguments"] == (
        '{"place": "shelf", "count": 1, "loud": false, "words": [], "more": {}, "why": "why 1"}'
    )
    messages = [USER, choice["message"], {"role": "tool", "content": "ok", "tool_call_id": "x"}]
    [answer] = ask(FakeUpstream(), tools=[tool], messages=messages).json()["choices"]
    assert answer["finish_reason"] == "stop"


def test_a_stream_ends_with_its_usage() -> None:
    body = {"stream": True, "stream_options": {"include_usage": True}}
    text = ask(FakeUpstream(), **body).text
    *_, usage, done, end = text.split("\n\n")
    assert '"completion_tokens"' in usage
    assert (done, end) == ("data: [DONE]", "")


def test_a_fault_may_pass() -> None:
    fake = FakeUpstream(fault="503", faults_left=1)
    assert [ask(fake).status_code for _ in range(2)] == [503, 200]


def test_an_unknown_fault_is_refused() -> None:
    refused = CliRunner().invoke(app, ["fake-upstream", "--fault", "flood"])
    assert refused.exit_code == 2
    assert "'flood' is not one of hang" in " ".join(refused.output.split())


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
def test_it_is_there(path: str) -> None:
    with TestClient(FakeUpstream().app()) as client:
        assert client.get(path).status_code == 200
