"""Long histories that agents have compacted, and go on from."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from fastapi.testclient import TestClient

from qguide.qnet.dialects.responses_requests import compaction_of
from qguide.qnet.errors import UpstreamError
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.responses.compaction import compacted
from qguide.server.responses.schemas import ResponsesRequest
from tests.support.dialect_upstream import DialectUpstream
from tests.unit.server.conftest import Serve, settings_of

HISTORY: Any = [
    {"role": "user", "content": "Your task is to: find the mug."},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "a mug on the shelf"},
]
TOOLS: Any = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]


@pytest.fixture
def gpt(guided: TestClient) -> Iterator[openai.OpenAI]:
    """OpenAI's client in front of an upstream of chats."""
    with openai.OpenAI(base_url="http://127.0.0.1/v1", api_key="any", http_client=guided, max_retries=0) as client:
        yield client


def test_a_history_is_compacted_to_its_messages_and_a_summary(gpt: openai.OpenAI, upstream: FakeUpstream) -> None:
    upstream.replies = ("The mug is on the shelf.",)
    compacted = gpt.responses.compact(model="demo", input=HISTORY, extra_body={"tools": TOOLS})
    asked = upstream.asked[-1]
    assert (asked.get("n", 1), asked["tool_choice"], asked["messages"][-1]["role"]) == (*(1, "none", "user"),)
    assert "a mug on the shelf" in str(asked["messages"])
    assert compacted.object == "response.compaction"
    assert compacted.usage.output_tokens == 6
    kinds = [item.type for item in compacted.output]
    assert kinds == ["message", "compaction"]
    items: Any = [item.model_dump(exclude_unset=True, warnings=False) for item in compacted.output]
    gpt.responses.create(model="demo", input=[*items, {"role": "user", "content": "go on"}])
    first, summary, last = upstream.asked[-1]["messages"]
    assert (first["content"], last["content"]) == (HISTORY[0]["content"], "go on")
    assert summary["content"].endswith("The mug is on the shelf.")


def test_a_stored_history_is_compacted_by_its_id_and_again(gpt: openai.OpenAI, upstream: FakeUpstream) -> None:
    first = gpt.responses.create(model="demo", input="find the mug")
    compacted = gpt.responses.compact(model="demo", previous_response_id=first.id)
    assert "find the mug" in str(upstream.asked[-1]["messages"])
    items: Any = [item.model_dump(exclude_unset=True, warnings=False) for item in compacted.output]
    assert [item.type for item in gpt.responses.compact(model="demo", input=items).output] == ["message", "compaction"]


def test_a_summary_is_no_step_of_the_episode(guided: TestClient) -> None:
    body = {"input": HISTORY, "tools": TOOLS}
    for path in ("responses", "responses/compact"):
        assert guided.post(f"/episodes/e/v1/{path}", json=body).status_code == 200
    assert guided.post("/v1/episodes/e/outcome", json={"reward": 1}).json()["steps"] == 1


def test_a_policy_that_says_nothing_has_not_compacted(guided: TestClient, upstream: FakeUpstream) -> None:
    upstream.replies = ("",)
    answer = guided.post("/v1/responses/compact", json={"input": HISTORY})
    assert answer.status_code == 502
    assert "without a summary" in answer.json()["error"]["message"]


def test_another_servers_compaction_is_refused_where_nothing_can_read_it(guided: TestClient) -> None:
    items = [{"type": "compaction", "id": "c", "encrypted_content": "gAAAA"}, HISTORY[0]]
    for path in ("responses", "responses/compact"):
        answer = guided.post(f"/v1/{path}", json={"input": items})
        assert answer.status_code == 400
        assert "input[0] was compacted by another server" in answer.json()["error"]["message"]


def test_a_text_is_kept_beside_its_summary(guided: TestClient) -> None:
    told = guided.post("/v1/responses/compact", json={"input": "find the mug"}).json()
    assert [item["type"] for item in told["output"]] == ["message", "compaction"]
    assert told["output"][0]["content"] == [{"type": "input_text", "text": "find the mug"}]


@pytest.mark.parametrize("body", [{}, {"input": []}, {"input": ""}])
def test_nothing_is_not_compacted(guided: TestClient, body: Any) -> None:
    answer = guided.post("/v1/responses/compact", json=body)
    assert answer.status_code == 400
    assert "input is empty" in answer.json()["error"]["message"]


def test_a_summary_that_was_cut_off_stands_for_nothing() -> None:
    text = {"type": "output_text", "text": "The mug is"}
    answer = {"status": "incomplete", "output": [{"type": "message", "content": [text]}]}
    with pytest.raises(UpstreamError, match=r"summary .*compact"):
        compacted(ResponsesRequest(input="find the mug"), answer)


@pytest.fixture
def native(serve: Serve, address: tuple[DialectUpstream, str]) -> TestClient:
    """A server in front of an upstream of the dialect `responses`."""
    settings = settings_of(address[1])
    demo = settings.upstreams["demo"].model_copy(update={"dialect": "responses"})
    return serve(settings.model_copy(update={"upstreams": {"demo": demo}}))


def test_an_upstream_of_the_dialect_reads_our_own_compaction_as_a_message(
    native: TestClient, upstream: DialectUpstream
) -> None:
    items = [compaction_of("The mug is on the shelf."), HISTORY[0]]
    for path in ("responses", "responses/compact"):
        assert native.post(f"/v1/{path}", json={"input": items}).status_code == 200
        first, last = upstream.asked[-1]["input"]
        assert (first["type"], first["role"], last) == ("message", "user", HISTORY[0])
        assert first["content"].endswith("The mug is on the shelf.")


@pytest.mark.parametrize("usage", [None, [], {"input_tokens": 3}, {"input_tokens": -3}])
def test_an_upstreams_compaction_may_have_any_usage(native: TestClient, upstream: DialectUpstream, usage: Any) -> None:
    upstream.odd = {"usage": usage}
    answer = native.post("/v1/responses/compact", json={"input": HISTORY})
    assert (answer.status_code, answer.json()["usage"]) == (200, usage)


def test_an_upstreams_compaction_ends_with_the_requests_time(native: TestClient, upstream: DialectUpstream) -> None:
    upstream.delay_s = 20.0
    headers = {"X-QGuide-Timeout-S": "0.2"}
    answer = native.post("/v1/responses/compact", json={"input": HISTORY}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "deadline_exceeded")


def test_an_upstream_of_the_dialect_compacts_itself(native: TestClient, upstream: DialectUpstream) -> None:
    body = {"input": HISTORY, "tools": TOOLS, "instructions": "Be brief.", "stream": False}
    told = native.post("/v1/responses/compact", json=body).json()
    sent = upstream.asked[-1]
    assert sent == {"model": "fake-1"} | {k: v for k, v in body.items() if k != "stream"}
    [item] = told["output"]
    assert item == {"id": "cmp_1", "type": "compaction", "encrypted_content": "theirs"}
    going = native.post("/v1/responses", json={"input": [item, HISTORY[0]]})
    assert going.json()["status"] == "completed"
    assert upstream.asked[-1]["input"][0] == item
