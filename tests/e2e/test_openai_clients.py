"""OpenAI's own clients, unmodified, against this server with a fake upstream."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import openai
import pydantic
import pytest

from qguide.server.app import create_app
from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.serving import serving_app

MESSAGES: Any = [{"role": "user", "content": "find the mug"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look at a place.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string", "enum": ["desk", "shelf"]}},
                "required": ["place"],
            },
        },
    }
]
BEST = DEFAULT_REPLIES[2]


@dataclass(frozen=True)
class Server:
    """The server's address, and the fake upstream behind it."""

    url: str
    upstream: FakeUpstream


@pytest.fixture(scope="module")
def started() -> Iterator[Server]:
    fake = FakeUpstream()
    with serving_app(fake.app()) as behind:
        demo = Upstream.model_validate({"url": f"{behind}/v1", "model": "fake", "retries": 0})
        settings = Settings(
            policy="demo", upstreams={"demo": demo}, q_models={"q": SCRIPTED}, timeout_s=30, unknown_models="error"
        )
        with serving_app(create_app(settings)) as url:
            yield Server(f"{url}/v1", fake)


@pytest.fixture
def server(started: Server) -> Server:
    started.upstream.__init__()  # type: ignore[misc]
    return started


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


def test_a_completion_is_the_best_candidate(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(
        model="demo", messages=MESSAGES, extra_body={"qguide": {"num_candidates": 3}}
    )
    assert completion.choices[0].message.content == BEST
    assert completion.usage is not None
    assert completion.usage.prompt_tokens_details is not None
    assert completion.model_extra is not None
    assert completion.model_extra["qguide"]["q_values"] == [0.5, 0.25, 0.75]


def test_an_agent_loop_with_tools(client: openai.OpenAI, server: Server) -> None:
    messages = list(MESSAGES)
    for _ in range(2):
        completion = client.chat.completions.create(
            model="demo", messages=messages, tools=TOOLS, parallel_tool_calls=False
        )
        message = completion.choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            assert call.type == "function"
            assert call.function.name == "look"
            result = {"role": "tool", "tool_call_id": call.id, "content": "a mug"}
            messages.append(result)
    assert [body["messages"][-1]["role"] for body in server.upstream.asked] == ["user", "tool"]
    assert server.upstream.asked[0]["parallel_tool_calls"] is False
    assert messages[-1].content in DEFAULT_REPLIES


class Place(pydantic.BaseModel):
    """Look at a place."""

    place: Literal["desk", "shelf"]


def test_a_parsed_tool_call_goes_back_as_the_sdk_writes_it(client: openai.OpenAI, server: Server) -> None:
    messages = list(MESSAGES)
    tools = [openai.pydantic_function_tool(Place, name="look")]
    for _ in range(2):
        completion = client.chat.completions.parse(model="demo", messages=messages, tools=tools)
        message = completion.choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            assert call.function.parsed_arguments == Place(place="desk")
            result = {"role": "tool", "tool_call_id": call.id, "content": "a mug"}
            messages.append(result)
    assert messages[-1].content in DEFAULT_REPLIES
    [call] = server.upstream.asked[1]["messages"][1]["tool_calls"]
    assert call["function"]["parsed_arguments"] == {"place": "desk"}


def test_a_stream_says_the_same(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="demo", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(said) == BEST
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


def test_the_sdks_own_assembly_of_a_stream_finds_the_tool_call(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="demo", messages=MESSAGES, tools=TOOLS) as stream:
        completion = stream.get_final_completion()
    [call] = completion.choices[0].message.tool_calls or []
    assert call.function.arguments == '{"place": "desk"}'
    assert completion.choices[0].finish_reason == "tool_calls"


def test_custom_tools_are_called_answered_and_streamed(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "custom", "custom": {"name": "shell"}}]
    asked: Any = {"model": "demo", "messages": MESSAGES, "tools": tools}
    message = client.chat.completions.create(**asked).choices[0].message
    assert message.tool_calls
    [call] = message.tool_calls
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("shell", "input 0")
    result = {"role": "tool", "tool_call_id": call.id, "content": "a mug"}
    turns = [*MESSAGES, message, result]
    assert client.chat.completions.create(**asked | {"messages": turns}).choices[0].message.content
    chunks = client.chat.completions.create(**asked, stream=True)
    pieces = [chunk.choices[0].delta for chunk in chunks]
    [streamed] = [call for piece in pieces for call in piece.tool_calls or []]
    assert streamed.model_extra == {"custom": {"name": "shell", "input": "input 0"}}


async def test_the_asynchronous_client(server: Server) -> None:
    async with openai.AsyncOpenAI(base_url=server.url, api_key="any") as client:
        completion = await client.chat.completions.create(model="demo", messages=MESSAGES, n=2)
    assert [choice.message.content for choice in completion.choices] == [BEST, DEFAULT_REPLIES[0]]


def test_errors_are_the_sdks_own(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="demo", messages=[])
    assert refused.value.type == "invalid_request_error"
    assert "messages is empty" in refused.value.message
    server.upstream.fault = "500"
    with pytest.raises(openai.InternalServerError, match=r"demo .*500"):
        client.chat.completions.create(model="demo", messages=MESSAGES)


def test_a_model_is_retrieved(client: openai.OpenAI) -> None:
    listed = client.models.list().data
    for model in listed:
        assert client.models.retrieve(model.id) == model
    assert client.models.retrieve("fake").id == "demo", "what the upstream calls it"
    with pytest.raises(openai.NotFoundError, match="model 'gpt-9'"):
        client.models.retrieve("gpt-9")


def test_models_are_listed(client: openai.OpenAI) -> None:
    [policy] = client.models.list()
    assert (policy.id, policy.object, policy.owned_by) == ("demo", "model", "demo")
    assert policy.created > 0


def test_completions_as_before_chats(client: openai.OpenAI) -> None:
    asked: Any = {"model": "demo", "prompt": "find the mug", "max_tokens": 20}
    assert client.completions.create(**asked).choices[0].text == BEST
    parts = client.completions.create(**asked, stream=True)
    assert "".join(part.choices[0].text for part in parts) == BEST
