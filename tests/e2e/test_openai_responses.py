"""OpenAI's own Responses client, unmodified, against this server with a fake upstream."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import openai
import pydantic
import pytest

from qguide.server.app import create_app
from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import EMBEDDED, SCRIPTED, Settings
from tests.support.serving import serving_app

TASK = "find the mug"
BEST = DEFAULT_REPLIES[2]
TOOLS: Any = [
    {
        "type": "function",
        "name": "look",
        "description": "Look at a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "enum": ["desk", "shelf"]}},
            "required": ["place"],
            "additionalProperties": False,
        },
        "strict": True,
    }
]


@contextmanager
def serving(fake: FakeUpstream, **limits: float) -> Iterator[str]:
    """A server in front of the fake upstream; `heartbeat_s` is its own, the rest the upstream's."""
    heartbeat_s = limits.pop("heartbeat_s", 5.0)
    with serving_app(fake.app()) as behind:
        given = {"url": f"{behind}/v1", "model": "fake", "retries": 0} | limits
        settings = Settings(
            policy="demo",
            upstreams={"demo": Upstream.model_validate(given)},
            q_models={"q": SCRIPTED},
            timeout_s=30,
            unknown_models="error",
            heartbeat_s=heartbeat_s,
        )
        with serving_app(create_app(settings)) as url:
            yield f"{url}/v1"


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[str, FakeUpstream]]:
    fake = FakeUpstream()
    with serving(fake) as url:
        yield url, fake


@pytest.fixture
def upstream(started: tuple[str, FakeUpstream]) -> FakeUpstream:
    started[1].__init__()  # type: ignore[misc]
    return started[1]


@pytest.fixture
def client(started: tuple[str, FakeUpstream], upstream: FakeUpstream) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=started[0], api_key="any", max_retries=0) as client:
        yield client


def test_a_response_is_the_best_candidate(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="demo", instructions="You are tidy.", input=TASK, extra_body={"qguide": {"num_candidates": 3}}
    )
    assert (response.output_text, response.status) == (BEST, "completed")
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens > 0
    assert response.model_extra is not None
    assert response.model_extra["store"] is True
    assert response.model_extra["qguide"]["q_values"] == [0.5, 0.25, 0.75]


def test_an_agent_loop_with_tools(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    items: Any = [{"role": "user", "content": TASK}]
    for _ in range(2):
        response = client.responses.create(
            model="demo", input=items, tools=TOOLS, parallel_tool_calls=False, store=False
        )
        items += response.output
        for item in response.output:
            if item.type == "function_call":
                assert (item.name, item.arguments) == ("look", '{"place": "desk"}')
                result = {"type": "function_call_output", "call_id": item.call_id, "output": "a mug"}
                items.append(result)
    assert response.output_text in DEFAULT_REPLIES
    first, second = upstream.asked
    assert first["parallel_tool_calls"] is False
    assert first["tools"][0]["function"]["strict"] is True
    assert [turn["role"] for turn in second["messages"]] == ["user", "assistant", "tool"]
    [call] = second["messages"][1]["tool_calls"]
    assert second["messages"][2]["tool_call_id"] == call["id"]


def test_events_come_in_order_and_are_numbered(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model="demo", input=TASK, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    said = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(said) == BEST
    assert len(said) > 3


def test_the_sdks_own_assembly_of_a_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(model="demo", input=TASK) as stream:
        response = stream.get_final_response()
    assert response.output_text == BEST
    assert response.usage is not None
    with client.responses.stream(model="demo", input=TASK, tools=TOOLS) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.function_call_arguments.delta"]
        response = stream.get_final_response()
    [call] = response.output
    assert call.type == "function_call"
    assert snapshots == [call.arguments] == ['{"place": "desk"}']


class Place(pydantic.BaseModel):
    """Look at a place."""

    place: Literal["desk", "shelf"]


def test_a_structured_output_is_parsed(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    upstream.replies = ['{"place": "desk"}']
    response = client.responses.parse(model="demo", input=TASK, text_format=Place)
    assert response.output_parsed == Place(place="desk")
    asked = upstream.asked[0]["response_format"]
    assert (asked["type"], asked["json_schema"]["name"]) == ("json_schema", "Place")
    assert asked["json_schema"]["schema"]["required"] == ["place"]


def test_custom_tools_are_called_answered_and_streamed(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    tools: Any = [{"type": "custom", "name": "shell"}]
    response = client.responses.create(model="demo", input=TASK, tools=tools)
    [call] = response.output
    assert call.type == "custom_tool_call"
    assert (call.name, call.input) == ("shell", "input 0")
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "a mug"}
    items: Any = [{"role": "user", "content": TASK}, call, result]
    answer = client.responses.create(model="demo", input=items, tools=tools)
    assert answer.output_text in DEFAULT_REPLIES
    events = client.responses.create(model="demo", input=TASK, tools=tools, stream=True)
    said = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert said == ["input 0"]


async def test_the_asynchronous_client(started: tuple[str, FakeUpstream]) -> None:
    async with openai.AsyncOpenAI(base_url=started[0], api_key="any") as client:
        response = await client.responses.create(model="demo", input=TASK)
        async with client.responses.stream(model="demo", input=TASK) as stream:
            streamed = await stream.get_final_response()
    assert response.output_text == streamed.output_text == BEST


def test_errors_are_the_sdks_own(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="gpt-9", input=TASK)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="resp_1") as refused:
        client.responses.create(model="demo", input=TASK, previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    upstream.fault = "500"
    with pytest.raises(openai.InternalServerError, match=r"demo .*500"):
        client.responses.create(model="demo", input=TASK)


def test_a_stream_that_fails_late_ends_with_the_error() -> None:
    fake = FakeUpstream(fault="hang")
    with (
        serving(fake, heartbeat_s=0.05, timeout_s=1.0) as url,
        openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client,
    ):
        opened, begun, error, failed = client.responses.create(model="demo", input=TASK, stream=True)
    assert opened.type == "response.created"
    assert begun.type == "response.in_progress"
    assert error.type == "error"
    assert "upstream demo was silent for 1 s" in error.message
    assert failed.type == "response.failed"
    assert failed.response.id == opened.response.id
    assert failed.response.error is not None
    assert failed.response.error.message == error.message


def texts_of(asked: Any) -> list[Any]:
    """Texts of the messages that an upstream was asked."""
    return [message["content"] for message in asked["messages"]]


def test_a_response_is_continued_by_its_id(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    first = client.responses.create(model="demo", input=TASK, instructions="Be tidy.")
    second = client.responses.create(model="demo", input="seen", previous_response_id=first.id)
    client.responses.create(model="demo", input="more", previous_response_id=second.id)
    assert texts_of(upstream.asked[-1]) == [TASK, BEST, "seen", BEST, "more"]
    assert second.previous_response_id == first.id
    shown = client.responses.retrieve(second.id)
    assert shown.output_text == BEST
    listed = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.type for item in listed] == ["message"] * 3, "over two pages"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.retrieve(first.id)
    assert missing.value.code == "unknown_response"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="demo", input="x", previous_response_id=second.id)
    assert refused.value.code == "previous_response_not_found"


def test_a_candidate_that_was_not_taken_is_continued(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    more: Any = {"qguide": {"num_candidates": 3, "return_candidates": True}}
    first = client.responses.create(model="demo", input=TASK, extra_body=more)
    assert first.model_extra is not None
    guidance = first.model_extra["qguide"]
    other = next(number for number in range(3) if number != guidance["chosen"])
    client.responses.create(model="demo", input="x", previous_response_id=f"{first.id}.{other}")
    said = guidance["candidates"][other]["message"]["content"]
    assert texts_of(upstream.asked[-1]) == [TASK, said, "x"]
    with pytest.raises(openai.BadRequestError, match=r"candidate '7'; .* 0 to 2"):
        client.responses.create(model="demo", input="x", previous_response_id=f"{first.id}.7")


def test_a_stream_is_continued_and_so_are_calls(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    asked: Any = {"model": "demo", "tools": TOOLS}
    with client.responses.stream(input=TASK, **asked) as stream:
        first = stream.get_final_response()
    [call] = [item for item in first.output if item.type == "function_call"]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "a mug"}
    client.responses.create(input=[result], previous_response_id=first.id, **asked)
    roles = [message["role"] for message in upstream.asked[-1]["messages"]]
    assert roles == ["user", "assistant", "tool"]
    references: Any = [{"role": "user", "content": TASK}, {"type": "item_reference", "id": call.id}, result]
    client.responses.create(input=references, **asked)
    assert upstream.asked[-1]["messages"] == upstream.asked[-2]["messages"]


def test_a_conversation_keeps_its_items(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    talk = client.conversations.create(items=[{"role": "user", "content": "Be brief."}])
    client.responses.create(model="demo", input=TASK, conversation=talk.id)
    client.responses.create(model="demo", input="x", conversation={"id": talk.id})
    assert texts_of(upstream.asked[-1]) == ["Be brief.", TASK, BEST, "x"]
    items = list(client.conversations.items.list(talk.id, order="asc"))
    assert [getattr(item, "role", None) for item in items] == [*("user", "user", "assistant", "user", "assistant")]
    client.conversations.items.delete(items[-1].id or "", conversation_id=talk.id)
    client.conversations.items.create(talk.id, items=[{"role": "user", "content": "y"}])
    assert len(list(client.conversations.items.list(talk.id, order="desc"))) == 5
    client.conversations.delete(talk.id)
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(talk.id)


def ended(client: openai.OpenAI, response_id: str) -> Any:
    """The response once it has ended."""
    for _ in range(200):
        response = client.responses.retrieve(response_id)
        if response.status not in ("queued", "in_progress"):
            return response
        time.sleep(0.05)
    raise AssertionError(response.status)


def test_a_response_in_the_background_is_fetched(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    upstream.delay_s = 0.3
    begun = client.responses.create(model="demo", input=TASK, background=True)
    assert (begun.status, begun.background, begun.output) == ("queued", True, [])
    with pytest.raises(openai.BadRequestError, match="queued; "):
        client.responses.create(model="demo", input="x", previous_response_id=begun.id)
    done = ended(client, begun.id)
    assert (done.id, done.status, done.output_text) == (begun.id, "completed", BEST)
    client.responses.create(model="demo", input="x", previous_response_id=begun.id)
    assert texts_of(upstream.asked[-1]) == [TASK, BEST, "x"]
    assert client.responses.cancel(begun.id).status == "completed"


def test_a_response_in_the_background_is_cancelled(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    upstream.delay_s = 0.5
    begun = client.responses.create(model="demo", input=TASK, background=True)
    assert client.responses.cancel(begun.id).status == "cancelled"
    while upstream.in_flight:
        time.sleep(0.05)
    time.sleep(0.2)
    told = client.responses.retrieve(begun.id)
    assert (told.status, told.output) == ("cancelled", []), "though the upstream has answered"
    client.responses.delete(begun.id)
    upstream.delay_s = 0
    other = client.responses.create(model="demo", input=TASK)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(other.id)


def test_a_stream_in_the_background_is_taken_up_where_it_broke_off(
    client: openai.OpenAI, upstream: FakeUpstream
) -> None:
    upstream.delay_s = 1.5
    with client.responses.create(
        model="demo", input=TASK, background=True, stream=True
    ) as begun:  # the client leaves after three events, before anything is drawn
        first: list[Any] = [next(begun) for _ in range(3)]
    kinds = ["response.created", "response.queued", "response.in_progress"]
    assert [event.type for event in first] == kinds
    response_id = first[0].response.id
    rest: list[Any] = list(client.responses.retrieve(response_id, stream=True, starting_after=2))
    assert [event.sequence_number for event in rest] == list(range(3, 3 + len(rest)))
    assert rest[-1].type == "response.completed"
    assert rest[-1].response.output_text == BEST
    again: list[Any] = list(client.responses.retrieve(response_id, stream=True))
    assert [event.type for event in again[:3]] == kinds
    assert again[0].response.status == "queued"
    assert again[3:] == rest, "though it has long ended"


def test_a_stream_in_the_background_ends_with_the_responses_failure(
    client: openai.OpenAI, upstream: FakeUpstream
) -> None:
    upstream.fault = "500"
    told = client.responses.create(model="demo", input=TASK, background=True, stream=True)
    last: Any = list(told)[-1]
    assert last.type == "response.failed"
    assert "upstream demo answered with 500" in last.response.error.message


def test_a_failure_in_the_background_is_told_with_the_response(client: openai.OpenAI, upstream: FakeUpstream) -> None:
    upstream.fault = "500"
    begun = client.responses.create(model="demo", input=TASK, background=True)
    done = ended(client, begun.id)
    assert done.status == "failed"
    assert "upstream demo answered with 500" in done.error.message


def test_input_tokens_are_counted() -> None:
    settings = Settings(policy=EMBEDDED)
    with (
        serving_app(create_app(settings)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        counted = client.responses.input_tokens.count(model=EMBEDDED, input=TASK)
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens > 5
