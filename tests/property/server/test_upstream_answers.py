"""Whatever JSON an upstream puts into the fields of its answer, every route answers or says 502."""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from qguide.qnet.decision.decision import Decision, StepUsage
from qguide.qnet.dialects.anthropic_answers import events_of
from qguide.qnet.dialects.chat_chunks import chunks_of
from qguide.qnet.dialects.gemini_answers import chunks_of as content_chunks_of
from qguide.qnet.policies.upstream_dialects import DialectName, build_dialect
from qguide.qnet.types import Candidate, spent_on
from qguide.server.anthropic.answers import AnthropicMessage, MessageEvent
from qguide.server.anthropic.schemas import MessagesRequest
from qguide.server.anthropic.translation import answer_of, read_message
from qguide.server.chat.answers import ChatChunk, ChatCompletion
from qguide.server.chat.schemas import GuidanceOptions
from qguide.server.chat.text_completions import TextCompletion, parts_of, text_completion_of
from qguide.server.chat.translation import completion_of
from qguide.server.gemini import translation as gemini
from qguide.server.gemini.answers import GeneratedContent
from qguide.server.gemini.schemas import GenerateContentRequest
from qguide.server.guidance.pass_through import native_answer
from qguide.server.guidance.step_types import GuidedStepResult
from qguide.server.http.event_stream import event, named_event
from qguide.server.responses.answers import ResponseEvent, ResponseObject
from qguide.server.responses.output import ResponseWriter, finished, opened
from qguide.server.responses.schemas import ResponsesRequest

Json = dict[str, Any]
Place = tuple[str | int, ...]

TOKEN: Final[Json] = {"token": "go", "logprob": -0.1, "bytes": [103, 111], "top_logprobs": []}
CHAT: Final[Json] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "system_fingerprint": "fp",
    "service_tier": "default",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "stop_reason": None,
            "logprobs": {"content": [TOKEN], "refusal": None},
            "message": {
                "role": "assistant",
                "content": "I go.",
                "refusal": None,
                "reasoning": "Hm.",
                "reasoning_content": "Hm.",
                "annotations": [],
            },
        },
        {
            "index": 1,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": [{"type": "text", "text": "I go."}],
                "function_call": {"name": "go", "arguments": "{}"},
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "go", "arguments": "{}"}},
                    {"id": "2", "type": "custom", "custom": {"name": "sh", "input": "ls"}},
                ],
            },
        },
    ],
    "usage": {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
    },
}
RESPONSE: Final[Json] = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "service_tier": "default",
    "incomplete_details": {"reason": "max_output_tokens"},
    "output": [
        {
            "id": "rs_1",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
            "encrypted_content": "x",
        },
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "I go.", "annotations": [], "logprobs": [TOKEN]},
                {"type": "refusal", "refusal": "no"},
            ],
        },
        {"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "1", "name": "go", "arguments": "{}"},
        {"id": "ctc_1", "type": "custom_tool_call", "status": "completed", "call_id": "2", "name": "sh", "input": "ls"},
    ],
    "usage": {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
    },
}
MESSAGE: Final[Json] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "stop_reason": "tool_use",
    "stop_sequence": "\n",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "I go.", "citations": None},
        {"type": "tool_use", "id": "1", "name": "go", "input": {"place": "desk"}},
    ],
    "usage": {"input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 1},
}
CONTENT: Final[Json] = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [
                    {"text": "Hm.", "thought": True},
                    {"text": "I go.", "thoughtSignature": "x"},
                    {"functionCall": {"name": "go", "args": {"place": "desk"}, "id": "1"}, "thoughtSignature": "x"},
                ],
            },
            "finishReason": "STOP",
            "index": 0,
        },
        {"content": {"parts": [{"text": "No."}]}, "finishReason": "MAX_TOKENS", "index": 1},
    ],
    "promptFeedback": {"blockReason": None},
    "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 3, "thoughtsTokenCount": 1},
}
ANSWERS: Final[Mapping[DialectName, Json]] = {
    "chat": CHAT,
    "responses": RESPONSE,
    "messages": MESSAGE,
    "gemini": CONTENT,
}
SCALARS: Final = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "text", "message", "tool_use", "\ud800", "output_text", "x" * 90])
    | st.text(max_size=4)
)
FIELDS: Final = st.sampled_from(["type", "text", "content", "name", "logprobs", "x"])
ANYTHING: Final = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=3), max_leaves=6
)
MISSING: Final = object()
THINKS: Final = {"type": "enabled", "budget_tokens": 1024}


class Told(BaseModel):
    """New content in an event of an upstream's own answer: each that clients know is a text."""

    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    signature: str = ""


class Own(BaseModel):
    """An upstream's own answer or an event of it; blocks and items of any other type are kept."""

    type: str = ""
    delta: str | Told = ""
    refusal: str = ""
    arguments: str = ""
    input: str = ""


def places_in(value: Any, place: Place = ()) -> Iterator[Place]:
    """The place of every value of an answer."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for name, inner in inside:
        yield (*place, name)
        if isinstance(inner, dict | list):
            yield from places_in(inner, (*place, name))


@st.composite
def odd_answers(draw: st.DrawFn, dialect: DialectName) -> bytes:
    """An answer of which one to three values are anything, or are missing."""
    answer = copy.deepcopy(ANSWERS[dialect])
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(list(places_in(answer))))
        around: Any = answer
        for step in way:
            around = around[step]
        given = draw(st.just(MISSING) | ANYTHING)
        if given is MISSING:
            del around[last]
        else:
            around[last] = given
    return json.dumps(answer).encode()


def taken(candidates: list[Candidate], chosen: int) -> GuidedStepResult:
    spent = spent_on(candidates)
    usage = StepUsage(
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
        cached_prompt_tokens=spent.cached_tokens,
        scored_tokens=0,
        cached_tokens=0,
    )
    scored_by = {"q_model": "q", "q_model_version": "0", "judge": False}
    decision = Decision(chosen, "only_candidate", tuple(candidates), None, usage)
    return GuidedStepResult(decision, "demo", scored_by, 1.0)


def sent(answer: Json, shape: type[BaseModel]) -> None:
    """The answer is JSON of the shape that the OpenAPI document states."""
    written = json.dumps(answer, allow_nan=False, ensure_ascii=False).encode()
    shape.model_validate_json(written)


def streamed(events: Iterator[bytes], shape: type[BaseModel]) -> None:
    """Every event is JSON of the shape that the OpenAPI document states."""
    for line in b"".join(events).decode().split("\n"):
        if line.startswith("data: {"):
            shape.model_validate_json(line.removeprefix("data: "))


@pytest.mark.parametrize("dialect", ANSWERS)
@given(data=st.data())
def test_any_answer_becomes_one_of_every_route(dialect: DialectName, data: st.DataObject) -> None:
    answer = data.draw(odd_answers(dialect))
    drawn = build_dialect(dialect).read_answer(answer).candidates
    for chosen in range(len(drawn)):
        answered(taken(drawn, chosen))


def answered(step: GuidedStepResult) -> None:
    """Every route's answer to a step, whole and in a stream."""
    options = GuidanceOptions(return_candidates=True)
    completion = completion_of(step, n=len(step.decision.candidates), options=options)
    sent(completion, ChatCompletion)
    streamed(map(event, chunks_of(completion, include_usage=True)), ChatChunk)
    text = text_completion_of(completion)
    sent(text, TextCompletion)
    streamed(map(event, parts_of(text, include_usage=True)), TextCompletion)
    as_message(step, options)
    as_response(step, options)
    as_content(step, options)


def as_message(step: GuidedStepResult, options: GuidanceOptions) -> None:
    asked = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 5, "thinking": THINKS}
    read = read_message(MessagesRequest.model_validate(asked))
    native = native_answer(step, "messages")
    message = answer_of(completion_of(step, n=1, options=options), read, native)
    sent(message, Own if native else AnthropicMessage)
    streamed(map(named_event, events_of(message)), Own if native else MessageEvent)


def as_content(step: GuidedStepResult, options: GuidanceOptions) -> None:
    read = gemini.read_content(GenerateContentRequest.model_validate({"contents": [{"parts": []}]}), "demo")
    native = native_answer(step, "gemini")
    content = gemini.answer_of(completion_of(step, n=1, options=options), read, native)
    sent(content, Own if native else GeneratedContent)
    streamed(map(event, content_chunks_of(content)), Own if native else GeneratedContent)


def as_response(step: GuidedStepResult, options: GuidanceOptions) -> None:
    begun = opened(ResponsesRequest(input="go"), model="demo", temperature=1.0)
    native = native_answer(step, "responses")
    response = finished(begun, completion_of(step, n=1, options=options), native=native)
    sent(response, Own if native else ResponseObject)
    writer = ResponseWriter(begun)
    streamed(writer.finished(response), Own if native else ResponseEvent)
