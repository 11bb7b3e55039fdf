"""On every route, nothing that only the operator may ask for reaches an upstream."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.policies.upstream_dialects import DialectName
from qguide.server.settings.remote_models import Upstream
from tests.support.dialect_upstream import DialectUpstream
from tests.unit.server.conftest import FAKES, Serve

Client = Callable[..., TestClient]

INSIDE = "http://169.254.169.254/latest/meta-data"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
USER = {"role": "user", "content": "find the mug"}
SAID: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    COMPLETIONS: {"prompt": "find the mug"},
    RESPONSES: {"input": "find the mug"},
    MESSAGES: {"messages": [USER], "max_tokens": 9},
}
DIALECTS: tuple[DialectName, ...] = ("chat", "messages", "responses")
FIRST = {"qguide": {"fallback": "first"}}


@pytest.fixture
def serving(serve: Serve, address: tuple[DialectUpstream, str]) -> Client:
    """A server with an upstream of each dialect, named as its dialect."""

    def start(**more: Any) -> TestClient:
        table = {"url": address[1], "model": "fake-1", "retries": 0}
        upstreams = {name: Upstream.model_validate(table | {"dialect": name}) for name in DIALECTS}
        named = {"upstreams": upstreams, "policy": "chat"}
        return serve(FAKES.model_copy(update=named | more))

    return start


def part(kind: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": kind, **fields}]}]


HOSTILE: list[tuple[str, dict[str, Any]]] = [
    *((path, {"kv_transfer_params": {"remote_host": "10.0.0.1"}}) for path in SAID),
    *((path, {"chat_template": "{{ 1 }}"}) for path in SAID),
    *((path, {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}) for path in SAID),
    *((path, {"lora_path": "/etc"}) for path in SAID),
    *((path, {"priority": -1}) for path in SAID),
    *((path, {"mcp_servers": [{"type": "url", "url": INSIDE, "name": "a"}]}) for path in SAID),
    *((path, {"container": "c_1"}) for path in SAID),
    *((path, {"vector_store_ids": ["vs_1"]}) for path in SAID),
    *((path, {"file_id": "file-1"}) for path in SAID),
    (CHAT, {"messages": part("image_url", image_url={"url": INSIDE})}),
    (CHAT, {"messages": part("file", file={"file_id": "file-1"})}),
    (CHAT, {"tools": [{"type": "mcp", "server_url": INSIDE}]}),
    (CHAT, {"tool_choice": {"type": "mcp", "server_label": "a"}}),
    (RESPONSES, {"tool_choice": {"type": "mcp", "server_label": "a"}}),
    (RESPONSES, {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}),
    (RESPONSES, {"tools": [{"type": "code_interpreter", "container": "c_1"}]}),
    (RESPONSES, {"input": part("input_image", image_url=INSIDE)}),
    (RESPONSES, {"input": part("input_image", image_url="data:,", file_id="file-1")}),
    (RESPONSES, {"input": part("input_file", file_id="file-1")}),
    (MESSAGES, {"messages": part("image", source={"type": "url", "url": INSIDE})}),
    (
        MESSAGES,
        {
            "messages": part(
                "tool_result", tool_use_id="1", content=[{"type": "image", "source": {"type": "url", "url": INSIDE}}]
            )
        },
    ),
    (MESSAGES, {"tools": [{"name": "a", "type": "mcp_toolset", "input_schema": {}}]}),
    (MESSAGES, {"tools": [{"name": "a", "type": "mcp_toolset", "defer_loading": True}]}),
]


@pytest.mark.parametrize("model", DIALECTS)
@pytest.mark.parametrize(("path", "hostile"), HOSTILE)
def test_nothing_of_it_is_asked(
    serving: Client, upstream: DialectUpstream, path: str, hostile: dict[str, Any], model: str
) -> None:
    answer = serving().post(path, json=SAID[path] | FIRST | hostile | {"model": model})
    assert answer.status_code == 400, answer.text
    assert upstream.asked == []


def test_an_address_beside_the_bytes_goes_no_way(serving: Client, upstream: DialectUpstream) -> None:
    bytes_ = {"type": "base64", "media_type": "image/png", "data": "AA==", "url": INSIDE}
    body = SAID[MESSAGES] | FIRST | {"messages": part("image", source=bytes_)}
    native = serving().post(MESSAGES, json=body | {"model": "messages"})
    assert native.status_code == 400
    assert "messages[0].content[0].source.url is the address" in native.text
    assert serving().post(MESSAGES, json=body | {"model": "chat"}).status_code == 200
    assert INSIDE not in str(upstream.asked)  # a translation takes the bytes alone


@pytest.mark.parametrize("model", DIALECTS)
def test_no_field_of_a_chats_message_names_an_address(serving: Client, upstream: DialectUpstream, model: str) -> None:
    block = {"type": "image", "source": {"type": "url", "url": INSIDE}}
    for field in ({"thinking_blocks": [block]}, {"image_url": INSIDE}, {"images": [block]}):
        said = {"role": "assistant", "content": "look"} | field
        body = {"messages": [USER, said, USER], "model": model} | FIRST
        answer = serving().post(CHAT, json=body)
        assert answer.status_code == 400
        assert "messages[1]." in answer.text
    assert upstream.asked == []


@pytest.mark.parametrize("model", DIALECTS)
def test_a_chats_thoughts_are_no_way_for_other_blocks(serving: Client, upstream: DialectUpstream, model: str) -> None:
    block = {"type": "image", "source": {"type": "base64", "data": "AA=="}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    said = {"role": "assistant", "content": "look", "thinking_blocks": [block, thought, "x"]}
    body = {"messages": [USER, said, USER], "model": model} | FIRST
    assert serving().post(CHAT, json=body).status_code == 200
    if model != "chat":  # a chat's upstream reads images in the content alone
        assert "AA==" not in str(upstream.asked)
    if model == "messages":
        assert thought in upstream.asked[0]["messages"][1]["content"]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_what_clients_send_unasked_is_left_out_with_a_warning(
    serving: Client, upstream: DialectUpstream, path: str
) -> None:
    model = {CHAT: "chat", MESSAGES: "messages", RESPONSES: "responses"}[path]
    body = SAID[path] | {"service_tier": "priority", "model": model, "qguide": {"num_candidates": 1}}
    answer = serving().post(path, json=body).json()
    assert answer["qguide"]["warnings"] == ["parameters without effect on this server: service_tier"]
    assert "service_tier" not in upstream.asked[0]


def test_a_chat_is_stored_in_nobodys_account(serving: Client, upstream: DialectUpstream) -> None:
    body = SAID[CHAT] | {"store": True, "metadata": {"a": "b"}}
    warnings = serving().post(CHAT, json=body).json()["qguide"]["warnings"]
    assert warnings == ["parameters without effect on this server: metadata, store"]
    assert {"store", "metadata"}.isdisjoint(upstream.asked[0])


def test_the_operator_widens_what_passes(serving: Client, upstream: DialectUpstream) -> None:
    fields = ("priority", "container", "file_id", "image_embeds")
    client = serving(caller_fields=fields, caller_media_domains=("images.example.org",))
    parts = [
        {"type": "image_url", "image_url": {"url": "https://images.example.org/a.png"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "image_embeds", "image_embeds": "AA=="},
    ]
    body = {"messages": [{"role": "user", "content": parts}], "priority": 1} | FIRST
    assert client.post(CHAT, json=body).status_code == 200
    body = SAID[MESSAGES] | {"container": "c_1", "model": "messages"}
    assert client.post(MESSAGES, json=body).status_code == 200
    chat, message = upstream.asked[0], upstream.asked[-1]
    assert (chat["messages"][0]["content"], chat["priority"]) == (parts, 1)
    assert message["container"] == "c_1"
