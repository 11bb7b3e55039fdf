"""Anthropic's own client, unmodified, against this server with a fake upstream."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam, ToolResultBlockParam

from qguide.server.app import create_app
from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.http.keys import create_key
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import EMBEDDED, SCRIPTED, Settings
from tests.support.serving import serving_app

MESSAGES: list[MessageParam] = [{"role": "user", "content": "find the mug"}]
TOOL: ToolParam = {
    "name": "look",
    "description": "Look at a place.",
    "input_schema": {
        "type": "object",
        "properties": {"place": {"type": "string", "enum": ["desk", "shelf"]}},
        "required": ["place"],
    },
}
BEST = DEFAULT_REPLIES[2]
M: Any = {"qguide": {"num_candidates": 3}}


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
            q_models={"q": SCRIPTED, "embedded": EMBEDDED},
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
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key=server.key, max_retries=0) as client:
        yield client


def test_a_message_is_the_best_candidate(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="demo", max_tokens=64, system="Be brief.", messages=MESSAGES, extra_body=M)
    [block] = message.content
    assert block.type == "text"
    assert block.text == BEST
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.cache_read_input_tokens is not None
    assert message.model_extra is not None
    assert message.model_extra["qguide"]["q_values"] == [0.5, 0.25, 0.75]


def test_a_round_trip_with_a_tool(client: anthropic.Anthropic, server: Server) -> None:
    messages = list(MESSAGES)
    asked: Any = {"model": "demo", "max_tokens": 64, "tools": [TOOL], "extra_body": M}
    message = client.messages.create(messages=messages, **asked)
    [call] = message.content
    assert message.stop_reason == "tool_use"
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("look", {"place": "desk"})
    result: ToolResultBlockParam = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": "a mug"}],
    }
    messages += [message.to_param(), {"role": "user", "content": [result]}]
    answer = client.messages.create(messages=messages, **asked)
    [text] = answer.content
    assert text.type == "text"
    assert answer.stop_reason == "end_turn"
    _, called, answered = server.upstream.asked[1]["messages"]
    assert called["tool_calls"][0]["id"] == answered["tool_call_id"] == call.id
    assert answered["content"] == "a mug"


@pytest.mark.parametrize("tools", [[], [TOOL]])
def test_the_sdks_own_assembly_of_a_stream_is_the_message(client: anthropic.Anthropic, tools: list[ToolParam]) -> None:
    asked: Any = {"model": "demo", "max_tokens": 64, "messages": MESSAGES, "tools": tools}
    whole = client.messages.create(**asked, extra_body=M)
    with client.messages.stream(**asked, extra_body=M) as stream:
        texts = list(stream.text_stream)
        streamed = stream.get_final_message()
    assert "".join(texts) == ("" if tools else BEST)
    said: list[Any] = [message.to_dict(exclude_none=True) for message in (whole, streamed)]
    for message in said:
        message.pop("id")
        message["qguide"].pop("timings_ms")
        for block in message["content"]:
            block.pop("id", None)
    assert said[0] == said[1]


async def test_the_asynchronous_client(server: Server) -> None:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key=server.key) as client:
        message = await client.messages.create(model="demo", max_tokens=9, messages=MESSAGES)
    assert message.stop_reason == "end_turn"


def test_errors_are_the_sdks_own(client: anthropic.Anthropic, server: Server) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="claude-9", max_tokens=9, messages=MESSAGES)
    assert (missing.value.type, missing.value.error_code) == ("not_found_error", "unknown_model")
    assert missing.value.request_id
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(model="demo", max_tokens=9, messages=[])
    assert (refused.value.type, refused.value.error_code) == ("invalid_request_error", "malformed_history")
    with pytest.raises(anthropic.AuthenticationError) as stranger:
        client.with_options(api_key="nobody's").messages.create(model="demo", max_tokens=9, messages=MESSAGES)
    assert stranger.value.type == "authentication_error"
    server.upstream.fault = "429"
    with pytest.raises(anthropic.RateLimitError) as busy:
        client.messages.create(model="demo", max_tokens=9, messages=MESSAGES)
    assert busy.value.error_code == "upstream_busy"
    server.upstream.fault = "500"
    with pytest.raises(anthropic.InternalServerError, match=r"demo .*500"):
        client.messages.create(model="demo", max_tokens=9, messages=MESSAGES)


def test_a_limit_of_the_key_is_the_sdks_rate_limit_error(tmp_path: Path) -> None:
    key = create_key(tmp_path / "keys.json", "agent", requests_per_minute=1)
    settings = Settings(policy=SCRIPTED, q_models={"q": SCRIPTED}, keys_file=tmp_path / "keys.json")
    with (
        serving_app(create_app(settings)) as url,
        anthropic.Anthropic(base_url=url, auth_token=key, max_retries=0) as client,
    ):
        client.messages.create(model="scripted", max_tokens=9, messages=MESSAGES)
        with pytest.raises(anthropic.RateLimitError) as limited:
            client.messages.create(model="scripted", max_tokens=9, messages=MESSAGES)
    assert limited.value.type == "rate_limit_error"
    assert int(limited.value.response.headers["retry-after"]) >= 1


def test_tokens_are_counted_by_the_q_models_tokenizer(client: anthropic.Anthropic) -> None:
    asked: Any = {"model": "demo", "extra_body": {"qguide": {"q_model": "embedded"}}}
    counted = client.messages.count_tokens(messages=MESSAGES, **asked)
    assert counted.input_tokens > 0
    assert counted.model_extra is not None
    assert counted.model_extra["qguide"]["counted_by"] == "q_model"
    assert counted.model_extra["qguide"]["exact"] is False
    with_tool = client.messages.count_tokens(messages=MESSAGES, tools=[TOOL], **asked)
    assert with_tool.input_tokens > counted.input_tokens
    with pytest.raises(anthropic.BadRequestError, match=r"qguide\.q_model"):
        client.messages.count_tokens(model="demo", messages=MESSAGES)


def test_an_embedded_policy_counts_what_its_usage_says() -> None:
    settings = Settings(policy=EMBEDDED, q_models={"q": SCRIPTED})
    asked: Any = {"model": EMBEDDED, "system": "Be brief.", "messages": MESSAGES}
    with (
        serving_app(create_app(settings)) as url,
        anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client,
    ):
        counted = client.messages.count_tokens(**asked)
        message = client.messages.create(max_tokens=2, **asked)
    assert counted.input_tokens == message.usage.input_tokens
    assert counted.model_extra is not None
    assert counted.model_extra["qguide"]["exact"] is True
