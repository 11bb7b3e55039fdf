"""One contract for the dialects in which an upstream is asked, against the fake that speaks all."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, get_args

import httpx
import pytest

from qguide.qnet.errors import (
    HistoryTooLongError,
    UnsupportedParameterError,
    UpstreamBusyError,
    UpstreamError,
    UpstreamRefusedError,
    UpstreamTimeoutError,
    UpstreamUnavailableError,
)
from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.qnet.policies.upstream_dialects import DialectName, build_dialect
from qguide.qnet.policies.upstream_settings import UpstreamLimits
from qguide.qnet.types import Candidate, History, Message, Sampling, ToolCall
from qguide.server.chat.fake_openai import DEFAULT_REPLIES
from tests.support.dialect_upstream import DialectUpstream
from tests.support.serving import serving_app
from tests.support.upstream_policy import HISTORY, QUICK, SHORT, TOOL, Body, said

DIALECTS: Final = get_args(DialectName)
NATIVE: Final = [name for name in DIALECTS if name != "chat"]
TAKE_N: Final = ("chat", "gemini")
WORDS: Final = sum(len(reply.split()) for reply in DEFAULT_REPLIES)
CALLED: History = (
    *HISTORY,
    Message("assistant", "I go.", (ToolCall("go", '{"to": "desk"}', "call-1"),)),
    Message("tool", "a mug", tool_call_id="call-1"),
)
IMAGE = Message(
    "user",
    "what is it",
    wire={
        "role": "user",
        "content": [
            {"type": "text", "text": "what is it"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ],
    },
)

WHOLE: Final[dict[DialectName, Any]] = {
    "chat": {"choices": [{"message": {"role": "assistant", "content": "go"}}]},
    "messages": {"content": [{"type": "text", "text": "go"}]},
    "responses": {
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "go"}]}],
    },
    "gemini": {"candidates": [{"content": {"parts": [{"text": "go"}]}, "finishReason": "STOP"}]},
}


@pytest.fixture
def upstream() -> DialectUpstream:
    return DialectUpstream()


@pytest.fixture
def url(upstream: DialectUpstream) -> Iterator[str]:
    with serving_app(upstream.app()) as address:
        yield f"{address}/v1"


@asynccontextmanager
async def asking(
    url: str, name: DialectName, streams: bool = False, limits: UpstreamLimits = QUICK
) -> AsyncIterator[OpenAICompatiblePolicy]:
    policy = OpenAICompatiblePolicy(
        "demo", url=url, model="fake", api_key="secret", dialect=build_dialect(name), streams=streams, limits=limits
    )
    try:
        yield policy
    finally:
        await policy.close()


@pytest.mark.parametrize("name", DIALECTS)
async def test_candidates_are_drawn_with_their_usage(upstream: DialectUpstream, url: str, name: DialectName) -> None:
    async with asking(url, name) as policy:
        drawn = await policy.sample(HISTORY, n=3, sampling=Sampling(max_tokens=9))
    assert sorted(said(drawn)) == sorted(DEFAULT_REPLIES)
    assert {key.removeprefix("Bearer ") for key in upstream.keys if key} == {"secret"}
    spent = [candidate.spent for candidate in drawn if candidate.spent]
    assert sum(one.completion_tokens for one in spent) == WORDS
    assert {(one.prompt_tokens, one.cached_tokens) for one in spent} == {(5, 2)}
    assert {candidate.finish_reason for candidate in drawn} == {"stop"}
    assert all(candidate.finished for candidate in drawn)
    assert len(upstream.asked) == (1 if name in TAKE_N else 3)


@pytest.mark.parametrize("name", DIALECTS)
async def test_tools_are_called_and_their_results_sent(upstream: DialectUpstream, url: str, name: DialectName) -> None:
    sampling = Sampling(parameters={"tools": [TOOL], "tool_choice": "auto"})
    async with asking(url, name) as policy:
        [called] = await policy.sample(HISTORY, n=1, sampling=sampling)
        [answered] = await policy.sample(CALLED, n=1, sampling=sampling)
    assert called.message.tool_calls == (ToolCall("go", '{"to": "desk"}'),)
    assert called.message.tool_calls[0].id
    assert called.finish_reason == "tool_calls"
    assert answered.message.content in DEFAULT_REPLIES
    sent = json.dumps(upstream.asked[-1])
    assert "a mug" in sent
    assert sent.count("call-1") == 2


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_schema_is_kept(upstream: DialectUpstream, url: str, name: DialectName) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    async with asking(url, name) as policy:
        sampling = Sampling(parameters={"response_format": form})
        [drawn] = await policy.sample(HISTORY, n=1, sampling=sampling)
    assert json.loads(drawn.message.content) == {"x": 0}


@pytest.mark.parametrize("name", DIALECTS)
async def test_an_image_is_sent(upstream: DialectUpstream, url: str, name: DialectName) -> None:
    async with asking(url, name) as policy:
        await policy.sample((IMAGE,), n=1, sampling=Sampling())
    assert "AAAA" in json.dumps(upstream.asked)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("429", UpstreamBusyError, "later"),
        ("503", UpstreamUnavailableError, "5(03|29)"),
        ("500", UpstreamError, "500"),
        ("401", UpstreamError, "key .*401"),
        ("policy", UpstreamRefusedError, ": .*allowed$"),
        ("context", HistoryTooLongError, "demo .*: "),
        ("garbage", UpstreamError, "with .*(completion|message|response|candidates)$"),
        ("empty", UpstreamError, "with .*(completion|message|response|candidates)$"),
        ("hang", UpstreamTimeoutError, r"0\.2 s; .*timeout_s"),
    ],
)
async def test_failures_mean_the_same(
    upstream: DialectUpstream, url: str, name: DialectName, fault: Any, kind: Any, message: str
) -> None:
    upstream.fault = fault
    async with asking(url, name, limits=SHORT if fault == "hang" else QUICK) as policy:
        with pytest.raises(kind, match=message) as raised:
            await policy.sample(HISTORY, n=1, sampling=Sampling())
    assert type(raised.value) is kind
    assert "a secret of the upstream" not in str(raised.value)


@pytest.mark.parametrize("name", DIALECTS)
async def test_an_overloaded_upstream_is_asked_again(upstream: DialectUpstream, url: str, name: DialectName) -> None:
    upstream.fault, upstream.faults_left = "503", 1
    async with asking(url, name) as policy:
        [drawn] = await policy.sample(HISTORY, n=1, sampling=Sampling())
    assert drawn.message.content in DEFAULT_REPLIES
    assert len(upstream.asked) == 2


@pytest.mark.parametrize("name", NATIVE)
async def test_a_parameter_that_only_chats_have_is_refused_unless_it_says_nothing(
    upstream: DialectUpstream, url: str, name: DialectName
) -> None:
    async with asking(url, name) as policy:
        neutral = {"logit_bias": {}, "frequency_penalty": 0, "seed": 3, "logprobs": False}
        await policy.sample(HISTORY, n=1, sampling=Sampling(seed=4, parameters=neutral))
        sampling = Sampling(parameters={"logit_bias": {"5": 1}})
        with pytest.raises(UnsupportedParameterError, match="'logit_bias'"):
            await policy.sample(HISTORY, n=1, sampling=sampling)
    [asked] = upstream.asked
    assert not {"logit_bias", "frequency_penalty", "seed", "logprobs", "n"} & asked.keys()


@pytest.mark.parametrize("name", NATIVE)
async def test_other_parameters_are_passed_on(upstream: DialectUpstream, url: str, name: DialectName) -> None:
    async with asking(url, name) as policy:
        sampling = Sampling(temperature=None, parameters={"top_k": 5, "top_p": 0.5})
        await policy.sample(HISTORY, n=1, sampling=sampling)
    [asked] = upstream.asked
    sent = asked.get("generationConfig", asked)
    given = sorted((key.replace("_", "").lower(), sent[key]) for key in sent if key.startswith("t"))
    assert given == [("topk", 5), ("topp", 0.5)]


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("parameters", [{}, {"tools": [TOOL]}, {"logprobs": True}], ids=["text", "calls", "logprobs"])
async def test_a_stream_says_what_a_whole_answer_says(
    upstream: DialectUpstream, url: str, name: DialectName, parameters: dict[str, Any]
) -> None:
    sampling = Sampling(parameters=parameters)
    drawn: list[list[Candidate]] = []
    for streams in (False, True):
        upstream.repeated.clear()
        async with asking(url, name, streams=streams) as policy:
            drawn.append(await policy.sample(HISTORY, n=3, sampling=sampling))
    assert upstream.streamed == (1 if name in TAKE_N else 3)
    whole, streamed = (
        [
            (one.message.key, one.completion_tokens, one.logprob, one.finish_reason, one.spent)
            for one in sorted(group, key=lambda one: one.message.key)
        ]
        for group in drawn
    )
    assert streamed == whole


@pytest.mark.parametrize("name", DIALECTS)
async def test_an_upstream_that_streams_to_nobody_is_asked_for_whole_answers(name: DialectName) -> None:
    asked: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        asked[-1] |= {"stream": True} if "streamGenerateContent" in request.url.path else {}
        if asked[-1].get("stream"):
            error = {"message": "stream is not supported", "type": "invalid_request_error"}
            return httpx.Response(400, stream=Body([json.dumps({"error": error}).encode()]))
        return httpx.Response(200, stream=Body([json.dumps(WHOLE[name]).encode()]))

    transport = httpx.MockTransport(answer)
    dialect = build_dialect(name)
    policy = OpenAICompatiblePolicy(
        "demo", url="http://demo/v1", model="m", dialect=dialect, streams=True, transport=transport
    )
    for _ in range(2):
        [drawn] = await policy.sample(HISTORY, n=1, sampling=Sampling())
        assert drawn.message.content == "go"
    assert [bool(body.get("stream")) for body in asked] == [True, False, False]
    await policy.close()


@pytest.mark.parametrize("name", DIALECTS)
async def test_any_other_refusal_is_told_at_once_and_streams_go_on(
    upstream: DialectUpstream, url: str, name: DialectName
) -> None:
    upstream.fault, upstream.faults_left = "policy", 1
    async with asking(url, name, streams=True) as policy:
        with pytest.raises(UpstreamRefusedError):
            await policy.sample(HISTORY, n=1, sampling=Sampling())
        assert len(upstream.asked) == 1
        await policy.sample(HISTORY, n=1, sampling=Sampling())
    assert (len(upstream.asked), upstream.streamed) == (2, 2)
