"""Conversations that OpenAI takes: an upstream gets them as they came, a Q model the texts."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.dialects.chat_chunks import chunks_of
from qguide.qnet.types import History, Message, ToolCall
from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.chat.schemas import ChatTurn
from qguide.server.chat.translation import to_chat_history
from qguide.server.guidance.readable_view import readable_view
from qguide.server.settings.remote_models import Upstream
from tests.unit.server.conftest import FAKES, Serve

CHAT = "/v1/chat/completions"
USER: Any = {"role": "user", "content": "find the mug"}
IMAGE: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
CACHED: Any = {"cache_control": {"type": "ephemeral"}}
FIRST: Any = {"qguide": {"fallback": "first", "num_candidates": 4}}
CALL: Any = {
    "id": "call_1",
    "type": "function",
    "index": 0,
    "function": {"name": "go", "arguments": '{"to": 1}', "parsed_arguments": {"to": 1}},
    "extra_content": {"google": {"thought_signature": "s"}},
}


CONTINUED: Any = {"continue_final_message": True}


def history_of(messages: list[Any]) -> History:
    """The history as the route reads it."""
    turns = [ChatTurn.model_validate(message) for message in messages]
    return to_chat_history(turns, most=100, most_bytes=10_000)[0]


@pytest.fixture
def client(serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream) -> TestClient:
    served = Upstream.model_validate({"url": address[1], "model": "fake-1", "retries": 0})
    more = {"upstreams": {"demo": served}, "policy": "demo", "paraphraser": "scripted"}
    return serve(FAKES.model_copy(update=more))


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": "Hello, what shall I do?"}, USER],
        [USER, {"role": "assistant", "content": "One"}, {"role": "assistant", "content": "2"}, USER],
        [{"role": "user", "content": [{"type": "text", "text": "find the mug"} | CACHED]}],
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "a desk"},
        ],
        [
            USER,
            {"role": "assistant", "content": None, "function_call": CALL["function"]},
            {"role": "function", "name": "go", "content": "a desk"},
        ],
    ],
    ids=["a greeting", "two in a row", "cache control", "tool calls with more", "a function"],
)
def test_a_q_model_guides_and_the_upstream_reads_what_the_caller_wrote(
    client: TestClient, upstream: FakeUpstream, messages: Any
) -> None:
    answer = client.post(CHAT, json={"messages": messages})
    assert answer.status_code == 200, answer.text
    assert answer.json()["qguide"]["guided"] is True
    assert len(answer.json()["qguide"]["q_values"]) == 5
    assert upstream.asked[0]["messages"] == messages


SYSTEM: Any = {"role": "system", "content": "You are in a kitchen."}
REFUSAL: Any = {"refusal": "I cannot help."}
SAID: Any = {"role": "assistant", "content": "Thought: I"}


@pytest.mark.parametrize(
    ("messages", "read", "warning"),
    [
        (
            [{"role": "user", "content": [{"type": "text", "text": "find the mug"}, IMAGE]}],
            [("user", "find the mug")],
            "messages[0] (user) has parts that the Q model does not read: image_url",
        ),
        (
            [USER, SAID, {"role": "user", "content": [IMAGE]}],
            [("user", "find the mug"), ("assistant", "Thought: I"), ("user", "[image_url]")],
            "messages[2] (user) has parts that the Q model does not read: image_url",
        ),
        (
            [USER, {"role": "assistant", "content": ""}, USER],
            [("user", "find the mug"), ("user", "find the mug")],
            "messages[1] (assistant) is empty",
        ),
        ([SYSTEM], [("user", SYSTEM["content"])], "the last message (system) was read as the user's"),
        (
            [USER, SAID, SYSTEM],
            [("user", "find the mug"), ("assistant", "Thought: I"), ("user", SYSTEM["content"])],
            "the last message (system) was read as the user's",
        ),
        ([USER, SAID], [("user", "find the mug")], "Q is that of its text and the candidate"),
    ],
    ids=["an image", "an image alone", "an empty turn", "system only", "system last", "a prefill"],
)
def test_a_q_model_reads_what_it_can_and_says_what_it_cannot(
    client: TestClient, upstream: FakeUpstream, messages: Any, read: Any, warning: str
) -> None:
    answer = client.post(CHAT, json={"messages": messages})
    assert answer.status_code == 200, answer.text
    guidance = answer.json()["qguide"]
    assert (guidance["guided"], len(guidance["q_values"])) == (True, 5)
    [said] = guidance["warnings"]
    assert warning in said
    assert upstream.asked[0]["messages"] == messages
    view = readable_view(history_of(messages))
    assert view is not None
    assert [(message.role, message.content) for message in view.history] == read


@pytest.mark.parametrize("said", [{"content": None} | REFUSAL, {"content": [{"type": "refusal"} | REFUSAL]}])
def test_a_refusal_is_read_as_what_the_agent_said(said: dict[str, Any]) -> None:
    turns = [ChatTurn.model_validate(message) for message in (USER, {"role": "assistant"} | said, USER)]
    history, flaw = to_chat_history(turns, most=100, most_bytes=10_000)
    assert (history[1], history[1].unread, flaw) == (Message("assistant", "I cannot help."), [], None)


@pytest.mark.parametrize(("parameters", "between"), [({}, "\n"), (CONTINUED, "")])
def test_a_candidate_is_scored_with_the_prefill_that_it_goes_on_with(parameters: dict[str, Any], between: str) -> None:
    view = readable_view(history_of([USER, SAID]), parameters)
    assert view is not None
    call = ToolCall("go", "{}")
    whole = view.candidate(Message("assistant", " look", (call,)))
    assert whole == Message("assistant", f"Thought: I{between} look", (call,))
    repeated = Message("assistant", f"Thought: I{between} look")
    assert view.candidate(repeated) == repeated, "some upstreams repeat the prefill"


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([{"role": "user", "content": [IMAGE]}], "a content part of type 'image_url'; Q models read"),
        ([SAID], "the last message has the role 'assistant'"),
        (
            [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, USER],
            "the tool calls 'call_1' have no result",
        ),
    ],
    ids=["an image", "a prefill", "a call without a result"],
)
def test_what_no_q_model_reads_goes_on_unguided_unless_the_request_refuses_that(
    client: TestClient, upstream: FakeUpstream, messages: Any, why: str
) -> None:
    refused = client.post(CHAT, json={"messages": messages, "qguide": {"fallback": "error"}})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "malformed_history"
    assert why in refused.json()["error"]["message"]
    assert upstream.asked == []

    answer = client.post(CHAT, json={"messages": messages, "qguide": {"num_candidates": 4}}).json()
    guidance = answer["qguide"]
    assert (guidance["guided"], guidance["reason"]) == (False, "fallback")
    assert why in guidance["unguided_reason"]
    assert guidance["q_values"] is None
    assert answer["choices"][0]["message"]["content"] in DEFAULT_REPLIES
    [asked] = upstream.asked
    assert asked["messages"] == messages
    assert "n" not in asked  # what nobody can choose from is not drawn


def test_n_choices_are_drawn_though_nobody_can_tell_which_is_best(client: TestClient, upstream: FakeUpstream) -> None:
    body = {"messages": [{"role": "user", "content": [IMAGE]}], "n": 2} | FIRST
    assert len(client.post(CHAT, json=body).json()["choices"]) == 2
    assert upstream.asked[0]["n"] == 2


def test_a_policy_in_this_process_reads_no_more_than_a_q_model(serve: Serve) -> None:
    body = {"messages": [{"role": "user", "content": [IMAGE]}]} | FIRST
    refused = serve().post(CHAT, json=body)
    assert (refused.status_code, "image_url" in refused.text) == (400, True)


def test_a_paraphrase_changes_the_words_of_a_part_and_nothing_else(client: TestClient, upstream: FakeUpstream) -> None:
    parts = [
        {"type": "text", "text": "You see a desk."} | CACHED,
        {"type": "text", "text": "Your task is to: find the mug"} | CACHED,
    ]
    turn = {"role": "user", "content": parts, "name": "ada"}
    body = {"messages": [turn], "qguide": {"num_candidates": 2, "perturb": True}}
    answer = client.post(CHAT, json=body).json()
    assert answer["qguide"]["perturbed"] == 1
    contents = [asked["messages"][0]["content"] for asked in upstream.asked]
    assert parts in contents
    [reworded] = [content for content in contents if content != parts]
    text = "Your task is to: In other words: find the mug"
    assert reworded == [parts[0], parts[1] | {"text": text}]
    assert all(asked["messages"][0]["name"] == "ada" for asked in upstream.asked)


def test_pieces_of_a_call_keep_what_else_it_has() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [CALL | {"index": 7}]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    completion = {"id": "x", "created": 1, "model": "m", "choices": [choice]}
    chunks = list(chunks_of(completion, include_usage=False))
    [opened] = chunks[1]["choices"][0]["delta"]["tool_calls"]
    assert opened["extra_content"] == CALL["extra_content"]
    assert opened["index"] == 0
    assert json.loads(chunks[2]["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"])


HALF = "\ud800"


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([{"role": "user", "content": HALF}], "messages.0.content"),
        (
            [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [CALL | {"id": HALF}]},
                {"role": "tool", "content": "there", "tool_call_id": HALF},
            ],
            "messages.1.tool_calls.0.id",
        ),
        ([USER | {"cache_control": {"type": HALF}}], "messages.0.cache_control.type"),
    ],
    ids=["in a text", "in a call's id", "in what is passed on"],
)
def test_half_a_character_is_a_400(client: TestClient, guided: TestClient, messages: Any, place: str) -> None:
    body = json.dumps({"messages": messages, "qguide": {"episode_id": "e"}})
    for server in (client, guided):
        refused = server.post(CHAT, content=body, headers={"Content-Type": "application/json"})
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["message"].startswith(f"body.{place} contains a lone surrogate")


def test_a_conversation_with_an_image_is_no_record(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream, tmp_path: Path
) -> None:
    served = Upstream.model_validate({"url": address[1], "model": "fake-1", "retries": 0})
    more = {"upstreams": {"demo": served}, "policy": "demo", "episodes_dir": tmp_path}
    client = serve(FAKES.model_copy(update=more))
    options = FIRST["qguide"] | {"episode_id": "e"}
    seen = {"messages": [{"role": "user", "content": [IMAGE]}], "qguide": options}
    assert client.post(CHAT, json=seen).status_code == 200
    outcome = client.post("/v1/episodes/e/outcome", json={"reward": 1.0}).json()
    assert outcome["recorded"] is False
    assert "Q models read" in outcome["reason"]


def test_what_differs_in_an_image_alone_is_another_state(client: TestClient) -> None:
    other = {"type": "image_url", "image_url": {"url": "data:image/png;base64,BB=="}}
    options = FIRST["qguide"] | {"episode_id": "seen"}
    for image in (IMAGE, other, other):
        message = {"role": "user", "content": [{"type": "text", "text": "click"}, image]}
        asked = client.post(CHAT, json={"messages": [message], "qguide": options})
        assert asked.status_code == 200, asked.text
    outcome = client.post("/v1/episodes/seen/outcome", json={"reward": 1.0}).json()
    assert outcome["steps"] == 2


def test_a_task_without_words_is_not_paraphrased(client: TestClient, upstream: FakeUpstream) -> None:
    options = FIRST["qguide"] | {"perturb": True}
    body = {"messages": [{"role": "user", "content": [IMAGE]}], "n": 3, "qguide": options}
    answer = client.post(CHAT, json=body).json()
    assert len(answer["choices"]) == 3
    said = "the task was not paraphrased: it has no words"
    assert (answer["qguide"]["perturbed"], answer["qguide"]["warnings"]) == (0, [said])
    assert answer["qguide"]["usage"]["paraphrase"]["completion_tokens"] == 0
    assert [asked["n"] for asked in upstream.asked] == [3]


@pytest.mark.parametrize("levels", [50, 300, 930, 945, 1_000, 10_000, 30_000])
@pytest.mark.parametrize("where", ["tools", "part"])
@pytest.mark.parametrize("form", ["[]", "{}"])
def test_what_is_nested_without_measure_is_a_400(client: TestClient, form: str, where: str, levels: int) -> None:
    nested = "[" * levels + "]" * levels if form == "[]" else '{"a":' * levels + "1" + "}" * levels
    part = nested if where == "part" else "1"
    body = f"""{{"messages": [{{"role": "user", "content": [{{"type": "thinking", "x": {part}}}]}}],
        "qguide": {{"fallback": "first", "episode_id": "e"}},
        "functions": {nested if where == "tools" else "[]"}}}"""
    answer = client.post(CHAT, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == (200 if levels < 100 else 400), answer.text
    if levels >= 100:
        error = answer.json()["error"]
        assert error["code"] == "malformed_body"
        assert "levels deep" in error["message"] or "nested too deeply" in error["message"]


def test_long_sessions_with_screenshots_pass_with_the_default_limits(
    guided: TestClient, upstream: FakeUpstream
) -> None:
    """1,041 messages, 1.5 MB of text and four screenshots of 1.5 MB."""
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 2**21}"}}
    seen = {"role": "user", "content": [{"type": "text", "text": "see"}, *[image] * 4]}
    turns = [{"role": "assistant", "content": "look " * 300}, {**USER, "content": "desk " * 300}]
    body = {"messages": [seen, *turns * 520], "qguide": {"num_candidates": 2}}
    answer = guided.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert len(upstream.asked[-1]["messages"]) == 1041
