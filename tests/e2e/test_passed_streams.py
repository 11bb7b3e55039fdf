"""Streams of one candidate that nothing chooses: they go on while the upstream is still writing."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from qguide.qnet.dialects.shapes import Json
from qguide.server.app import create_app
from qguide.server.http.event_stream import DONE, HEARTBEAT, event
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import NONE, Settings
from tests.support.serving import serving_app

USER: Any = {"role": "user", "content": "find the mug"}
BUSY = JSONResponse({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, 429, {"Retry-After": "1"})
CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "go", "arguments": ""}}
USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "cost": 0.5}}
WAIT_S = 30


def delta(finish_reason: str | None = None, **fields: Any) -> Json:
    return {"id": "theirs", "choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


@dataclass
class Gated:
    """An upstream that writes the first piece, and the others once its gate is open."""

    first: list[Json] = field(default_factory=lambda: [delta(role="assistant", content=""), delta(content="I ")])
    others: list[Json] = field(default_factory=lambda: [delta(content="go."), delta("stop"), USAGE])
    refusals: list[Response] = field(default_factory=list)
    done: bytes = DONE
    gate: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)
    asked: int = 0

    def app(self) -> FastAPI:
        app = FastAPI()
        app.add_api_route("/v1/chat/completions", self.complete, methods=["POST"])
        return app

    async def complete(self, request: Request) -> Response:
        assert (await request.json())["stream"]
        self.asked += 1
        return (
            self.refusals.pop(0) if self.refusals else StreamingResponse(self.written(), media_type="text/event-stream")
        )

    async def written(self) -> AsyncIterator[bytes]:
        try:
            for one in self.first:
                yield event(one)
            while not self.gate.is_set():
                await asyncio.sleep(0.01)
            for one in self.others:
                yield event(one)
            self.ended.set()
            yield self.done
        finally:
            self.gone.set()


@pytest.fixture
def upstream() -> Gated:
    return Gated()


@pytest.fixture
def client(upstream: Gated) -> Iterator[openai.OpenAI]:
    with serving_app(upstream.app()) as behind:
        demo = Upstream.model_validate({"url": f"{behind}/v1", "model": "m", "retries": 1, "breaker_failures": 1})
        settings = Settings(policy="demo", upstreams={"demo": demo}, q_models={NONE: NONE}, heartbeat_s=2)
        with (
            serving_app(create_app(settings)) as url,
            openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=WAIT_S) as client,
        ):
            yield client
            upstream.gate.set()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def has_step(client: openai.OpenAI) -> bool:
    """True if a step of the episode `e` was recorded; else it has no outcome."""
    url = str(client.base_url).removesuffix("/v1/")
    status = httpx.post(f"{url}/v1/episodes/e/outcome", json={"reward": 1.0}).status_code
    assert status in (200, 404)
    return status == 200


def stream_of(client: openai.OpenAI, **more: Any) -> Any:
    asked: Any = {"model": "demo", "messages": [USER], "stream": True} | more
    return client.chat.completions.create(**asked, extra_body={"qguide": {"episode_id": "e"}})


def test_the_first_chunk_arrives_before_the_upstream_has_ended(client: openai.OpenAI, upstream: Gated) -> None:
    stream = stream_of(client, stream_options={"include_usage": True})
    first = next(stream)
    assert not upstream.ended.is_set()
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "I ")
    upstream.gate.set()
    *others, last, usage = stream
    assert [one.choices[0].delta.content for one in others] == ["go."]
    assert {(one.id, one.model) for one in (first, *others, last, usage)} == {(first.id, "demo")}
    assert first.id.startswith("chatcmpl-")
    assert last.choices[0].finish_reason == "stop"
    assert (usage.usage.prompt_tokens, usage.usage.completion_tokens) == (9, 4)
    told = last.qguide
    assert (told["num_candidates"], told["guided"], told["episode_id"]) == (1, False, "e")
    assert told["cost"]["sample"] == 0.5
    assert has_step(client)


def test_the_sdks_own_assembly_finds_a_call_that_came_in_pieces(client: openai.OpenAI, upstream: Gated) -> None:
    named = {"index": 0, "function": {"name": "go", "arguments": '{"to": '}}  # again, as some upstreams name it
    upstream.first = [delta(role="assistant", content=None), delta(tool_calls=[CALL]), delta(tool_calls=[named])]
    upstream.others = [delta(tool_calls=[{"index": 0, "function": {"arguments": '"desk"}'}}]), delta("tool_calls")]
    tools: Any = [{"type": "function", "function": {"name": "go", "parameters": {"type": "object"}}}]
    with client.chat.completions.stream(model="demo", messages=[USER], tools=tools) as stream:
        seen = next(one for one in stream if one.type == "tool_calls.function.arguments.delta")
        assert not upstream.ended.is_set()
        assert seen.name == "go"
        upstream.gate.set()
        calls = stream.get_final_completion().choices[0].message.tool_calls or []
    assert len(calls) == 1
    call = calls[0]
    assert (call.id, call.function.name, call.function.arguments) == ("c", "go", '{"to": "desk"}')


@pytest.mark.parametrize("how", ["breaks off", "says an error"])
def test_a_failure_after_the_first_piece_is_the_last_event_and_no_step(
    client: openai.OpenAI, upstream: Gated, how: str
) -> None:
    upstream.others = [] if how == "breaks off" else [{"error": {"message": "a secret", "type": "server_error"}}]
    upstream.done = b""
    stream = stream_of(client)
    assert next(stream).choices[0].delta.content == "I "
    upstream.gate.set()
    with pytest.raises(openai.APIError, match=r"demo.*answer") as raised:
        list(stream)
    assert "secret" not in str(raised.value)
    assert upstream.asked == 1  # not again: its first words have been read
    assert not has_step(client)
    if how == "breaks off":  # the circuit has counted it
        with pytest.raises(openai.InternalServerError, match=r"times.*answer"):
            stream_of(client)


def test_what_breaks_off_before_the_first_word_is_asked_again(client: openai.OpenAI, upstream: Gated) -> None:
    upstream.gate.set()
    upstream.first, others, upstream.others = upstream.first[:1], upstream.others, [{"error": {"type": "server_error"}}]

    def later() -> None:
        until(lambda: upstream.asked == 1 and upstream.gone.is_set())
        upstream.others = others

    waiting = threading.Thread(target=later)
    waiting.start()
    stream = stream_of(client)
    waiting.join()
    assert next(one.choices[0].delta.content for one in stream) == "go."
    assert upstream.asked == 2


def test_a_caller_who_goes_ends_the_upstreams_answer(client: openai.OpenAI, upstream: Gated) -> None:
    stream = stream_of(client)
    next(stream)
    assert not upstream.gone.is_set()
    stream.close()
    assert upstream.gone.wait(WAIT_S)
    assert not upstream.ended.is_set()
    assert not has_step(client)


@pytest.mark.parametrize("num_candidates", [1, 3])
def test_a_refusal_that_stays_after_retries_has_its_own_status(
    client: openai.OpenAI, upstream: Gated, num_candidates: int
) -> None:
    upstream.refusals = [BUSY] * 2
    with pytest.raises(openai.RateLimitError) as raised:  # after a second's wait, in which others get a sign of life
        client.chat.completions.create(
            model="demo", messages=[USER], stream=True, extra_body={"qguide": {"num_candidates": num_candidates}}
        )
    assert raised.value.response.headers["retry-after"] == "1"
    assert upstream.asked == 2


def test_there_are_signs_of_life_between_the_pieces(client: openai.OpenAI, upstream: Gated) -> None:
    asked = {"model": "demo", "messages": [USER], "stream": True}
    with httpx.stream("POST", f"{client.base_url}chat/completions", json=asked, timeout=WAIT_S) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines).removeprefix("data: "))["choices"][0]["delta"]["content"] == "I "
        assert next(line for line in lines if line) == HEARTBEAT.decode().strip()
        upstream.gate.set()
        assert [line for line in lines if line][-1] == DONE.decode().strip()
