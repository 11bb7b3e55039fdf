"""Ollama's routes through the server: signs of life, errors in a stream, warnings."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from tests.unit.server.conftest import Serve, settings_of

BODY = {"model": "demo", "messages": [{"role": "user", "content": "find the mug"}]}


def lines_of(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    response = client.post("/api/chat", json=BODY | {"qguide": {"num_candidates": 3}} | body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_slow_answer_begins_with_lines_without_text(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1], heartbeat_s=0.05))
    upstream.delay_s = 0.3
    lines = lines_of(client)
    assert [line["message"]["content"] for line in lines[:3]] == ["", "", ""]
    assert "".join(line["message"]["content"] for line in lines) == DEFAULT_REPLIES[2]
    assert lines[-1]["qguide"]["q_values"] == [0.5, 0.25, 0.75]


def test_an_error_after_a_sign_of_life_is_the_last_line(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1], heartbeat_s=0.05, timeout_s=0.3))
    upstream.fault = "hang"
    *waiting, last = lines_of(client)
    assert waiting
    assert list(last) == ["error"]
    assert isinstance(last["error"], str)


def test_what_has_no_effect_is_named(guided: TestClient, upstream: FakeUpstream) -> None:
    options = {"num_ctx": 4096}
    body = BODY | {"stream": False, "keep_alive": "5m", "options": options}
    [warning] = guided.post("/api/chat", json=body).json()["qguide"]["warnings"]
    assert warning.endswith("on this server: keep_alive, options.num_ctx")


def test_a_prompt_is_answered_whole_and_in_lines(guided: TestClient, upstream: FakeUpstream) -> None:
    body = {"model": "demo", "prompt": "find the mug", "system": "Be brief."}
    whole = guided.post("/api/generate", json=body | {"stream": False, "context": [1]}).json()
    assert whole["response"] == DEFAULT_REPLIES[2]
    assert whole["done_reason"] == "stop"
    assert "message" not in whole
    [warning] = whole["qguide"]["warnings"]
    assert warning.endswith("on this server: context")
    roles = [turn["role"] for turn in upstream.asked[0]["messages"]]
    assert roles == ["system", "user"]
    response = guided.post("/api/generate", json=body)
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert "".join(line["response"] for line in lines) == DEFAULT_REPLIES[2]
    assert [line["done"] for line in lines[-2:]] == [False, True]


def test_an_empty_prompt_draws_nothing(guided: TestClient, upstream: FakeUpstream) -> None:
    told = guided.post("/api/generate", json={"model": "demo"}).json()
    assert (told["response"], told["done"], told["done_reason"]) == ("", True, "load")
    assert upstream.asked == []


def test_a_suffix_is_refused(guided: TestClient) -> None:
    refused = guided.post("/api/generate", json={"model": "demo", "prompt": "a", "suffix": "b"})
    assert refused.status_code == 400
    assert "fills nothing in" in refused.json()["error"]


@pytest.mark.parametrize("declared", [{}, {"Content-Type": "application/x-www-form-urlencoded"}])
def test_a_body_need_not_be_declared_unless_a_web_page_sends_it(guided: TestClient, declared: dict[str, str]) -> None:
    body = json.dumps(BODY | {"stream": False})
    told = guided.post("/api/chat", content=body, headers=declared)
    assert told.json()["message"]["content"], "as `curl -d` and LiteLLM send it"
    for name, value in (("Origin", "http://evil.example"), ("Origin", "null"), ("Sec-Fetch-Site", "cross-site")):
        refused = guided.post("/api/chat", content=body, headers=declared | {name: value})
        assert refused.status_code == 400
        assert "not declared as JSON" in refused.json()["error"]


def test_policies_are_loaded(guided: TestClient) -> None:
    assert guided.get("/api/ps").json() == guided.get("/api/tags").json()
