"""Gemini's dialect, from chat turns and back."""

import json
from typing import Any

import pytest

from qguide.qnet.dialects.gemini_requests import UNSIGNED
from qguide.qnet.errors import InvalidRequestError, UnsupportedParameterError
from qguide.qnet.native_requests import NativeRequest
from qguide.qnet.policies.answer_parsing import events_in
from qguide.qnet.policies.upstream_dialects import GEMINI as DIALECT
from qguide.qnet.types import Candidate, Message, Sampling, ToolCall
from qguide.qnet.work import TokenUsage
from tests.support.upstream_policy import TOOL

SIGNED = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
FUNCTION = {"name": "go", "parametersJsonSchema": TOOL["function"]["parameters"]}


def body(*history: Message, model: str = "gemini-3-pro", n: int = 1, **sampling: Any) -> dict[str, Any]:
    given = {"temperature": None, "max_tokens": None} | sampling
    return DIALECT.request_body(model, history, n=n, sampling=Sampling(**given))


def drawn(*parts: dict[str, Any], **more: Any) -> Candidate:
    answer = {"candidates": [{"content": {"parts": list(parts)}, **more}]}
    [candidate] = DIALECT.read_answer(json.dumps(answer).encode()).candidates
    return candidate


def called(*calls: ToolCall, **extra: Any) -> Message:
    said = [
        {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}, **extra}
        for one in calls
    ]
    return Message("assistant", "", calls, wire={"role": "assistant", "content": None, "tool_calls": said})


def test_a_conversation_is_contents_in_which_a_role_never_follows_itself() -> None:
    asked = body(
        Message("system", "be brief"),
        Message("developer", "be kind"),
        Message("user", "find the mug"),
        called(ToolCall("a", '{"x": 1}', "1"), ToolCall("b", "no JSON", "2"), **SIGNED),
        Message("tool", "x", tool_call_id="1"),
        Message("tool", "", tool_call_id="2"),
        Message("system", "hurry"),
    )
    assert asked["systemInstruction"] == {"parts": [{"text": "be brief"}, {"text": "be kind"}]}
    assert asked["contents"] == [
        {"role": "user", "parts": [{"text": "find the mug"}]},
        {
            "role": "model",
            "parts": [
                {"functionCall": {"id": "1", "name": "a", "args": {"x": 1}}, "thoughtSignature": "c2ln"},
                {
                    "functionCall": {"id": "2", "name": "b", "args": {"INVALID_JSON": "no JSON"}},
                    "thoughtSignature": "c2ln",
                },
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "1", "name": "a", "response": {"output": "x"}}},
                {"functionResponse": {"id": "2", "name": "b", "response": {"output": ""}}},
                {"text": "hurry"},
            ],
        },
    ]


@pytest.mark.parametrize(("model", "signature"), [("gemini-3-pro", UNSIGNED), ("models/gemini-2.5-flash", None)])
def test_a_call_whose_signature_is_lost_is_let_pass_where_one_is_wanted(model: str, signature: str | None) -> None:
    asked = body(Message("user", "go"), called(ToolCall("a", "{}", "1"), ToolCall("b", "{}", "2")), model=model)
    first, second = asked["contents"][1]["parts"]
    assert (first.get("thoughtSignature"), second.get("thoughtSignature")) == (signature, None)


def test_the_user_speaks_first() -> None:
    asked = body(Message("system", "be brief"), Message("assistant", "Hello."))
    assert [content["role"] for content in asked["contents"]] == ["user", "model"]


def test_parameters_have_their_names_here() -> None:
    asked = body(
        Message("user", "go"),
        n=3,
        temperature=0.5,
        max_tokens=9,
        seed=4,
        parameters={"top_k": 5, "stop": "\n", "presence_penalty": 0.1, "logprobs": True, "min_p": 0.1},
    )
    assert asked["generationConfig"] == {
        "candidateCount": 3,
        "temperature": 0.5,
        "maxOutputTokens": 9,
        "seed": 4,
        "topK": 5,
        "stopSequences": ["\n"],
        "presencePenalty": 0.1,
    }
    assert asked["min_p"] == 0.1, "which Gemini refuses by its name, so that it is left out with a warning"


def test_texts_beyond_those_that_gemini_takes_end_a_candidate_here() -> None:
    stop = {"stop": ["A", "B", "C", "D", "E", "F"]}
    asked = body(Message("user", "Go."), parameters=stop)
    assert asked["generationConfig"]["stopSequences"] == stop["stop"][:5]
    [ended] = DIALECT.ended([drawn({"text": "go F east"})], Sampling(parameters=stop))
    assert (ended.message.text, ended.finish_reason) == ("go ", "stop")


@pytest.mark.parametrize(
    ("model", "parameters", "expected"),
    [
        ("gemini-3-pro", {"reasoning_effort": "high"}, {"includeThoughts": True, "thinkingLevel": "high"}),
        ("gemini-3-pro", {"reasoning_effort": "minimal"}, {"thinkingLevel": "low"}),
        ("gemini-2.5-flash", {"reasoning_effort": "low"}, {"includeThoughts": True, "thinkingBudget": 1024}),
        ("gemini-2.5-flash", {"reasoning_effort": "none"}, {"thinkingBudget": 0}),
        ("gemini-2.5-flash", {"reasoning": {"summary": "auto"}}, {"includeThoughts": True}),
    ],
)
def test_thoughts_are_switched_on_in_the_models_own_way(model: str, parameters: Any, expected: Any) -> None:
    asked = body(Message("user", "go"), model=model, parameters=parameters)
    assert asked["generationConfig"] == {"thinkingConfig": expected}


@pytest.mark.parametrize(
    ("choice", "calling"),
    [
        ("required", {"mode": "ANY"}),
        ("none", {"mode": "NONE"}),
        ({"type": "function", "function": {"name": "go"}}, {"mode": "ANY", "allowedFunctionNames": ["go"]}),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}, {"mode": "AUTO"}),
    ],
)
def test_tools_are_declared_and_their_choice_told(choice: Any, calling: Any) -> None:
    asked = body(Message("user", "go"), parameters={"tools": [TOOL], "tool_choice": choice})
    assert asked["tools"] == [{"functionDeclarations": [FUNCTION]}]
    assert asked["toolConfig"] == {"functionCallingConfig": calling}


def test_files_are_sent_by_their_bytes_or_their_address() -> None:
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.webp"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,BBBB"}},
        {"type": "input_audio", "input_audio": {"data": "CCCC", "format": "wav"}},
    ]
    asked = body(Message("user", "", wire={"role": "user", "content": parts}))
    assert asked["contents"][0]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
        {"fileData": {"fileUri": "https://example.org/a.webp", "mimeType": "image/webp"}},
        {"inlineData": {"mimeType": "application/pdf", "data": "BBBB"}},
        {"inlineData": {"mimeType": "audio/wav", "data": "CCCC"}},
    ]


def test_what_cannot_be_said_is_refused() -> None:
    video = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    with pytest.raises(
        InvalidRequestError, match=r"'video_url', .*'gemini' .* text, image_url, input_audio or file_data"
    ):
        body(Message("user", "", wire={"role": "user", "content": [video]}))
    with pytest.raises(InvalidRequestError, match=r"'custom'; .*'gemini' .*functions"):
        body(Message("user", "go"), parameters={"tools": [{"type": "custom", "custom": {"name": "x"}}]})
    with pytest.raises(UnsupportedParameterError, match=r"'gemini', .*'logit_bias'"):
        body(Message("user", "go"), parameters={"logit_bias": {"5": 1}})


def test_the_path_names_the_model_and_the_stream() -> None:
    asked = body(Message("user", "go"), model="gemini-2.5-flash")
    path, content = DIALECT.placed(DIALECT.path, asked)
    assert (path, content) == ("models/gemini-2.5-flash:generateContent", {"contents": asked["contents"]})
    path, _ = DIALECT.placed(DIALECT.path, asked | {"model": "tunedModels/a", "stream": True})
    assert path == "tunedModels/a:streamGenerateContent?alt=sse"


def test_thoughts_calls_and_signatures_are_read() -> None:
    candidate = drawn(
        {"text": "Hm.", "thought": True},
        {"text": "I go."},
        {"functionCall": {"name": "go", "args": {"to": "desk"}}, "thoughtSignature": "c2ln"},
        finishReason="STOP",
    )
    assert candidate.message == Message("assistant", "I go.", (ToolCall("go", '{"to": "desk"}'),))
    assert candidate.finish_reason == "tool_calls"
    wire = candidate.message.wire or {}
    assert wire["reasoning_content"] == "Hm."
    assert wire["tool_calls"][0]["extra_content"] == SIGNED["extra_content"]
    again = body(
        Message("user", "go"), candidate.message, Message("tool", "x", tool_call_id=wire["tool_calls"][0]["id"])
    )
    assert again["contents"][1]["parts"][-1]["thoughtSignature"] == "c2ln"
    said = drawn({"text": "Done."}, {"text": "", "thoughtSignature": "c2ln"}, finishReason="STOP")
    [content] = body(Message("user", "go"), said.message)["contents"][1:]
    assert content["parts"] == [{"text": "Done.", "thoughtSignature": "c2ln"}]


@pytest.mark.parametrize(
    ("reason", "finish"), [("MAX_TOKENS", "length"), ("PROHIBITED_CONTENT", "content_filter"), ("OTHER", "stop")]
)
def test_an_answer_ends_for_its_reason(reason: str, finish: str) -> None:
    assert drawn({"text": "a"}, finishReason=reason).finish_reason == finish


def test_a_prompt_that_is_blocked_is_a_filtered_answer() -> None:
    answer = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}}
    [candidate] = DIALECT.read_answer(json.dumps(answer).encode()).candidates
    assert (candidate.finish_reason, candidate.message.content) == ("content_filter", "")


def test_each_candidate_has_the_answer_with_itself_alone_and_thoughts_are_counted() -> None:
    candidates = [{"content": {"parts": [{"text": said}]}, "finishReason": "STOP"} for said in "ab"]
    usage = {"promptTokenCount": 9, "cachedContentTokenCount": 4, "candidatesTokenCount": 2, "thoughtsTokenCount": 6}
    read = DIALECT.read_answer(json.dumps({"candidates": candidates, "usageMetadata": usage}).encode())
    bodies = [one.native.body["candidates"] for one in read.candidates if one.native]
    assert bodies == [[candidates[0]], [candidates[1]]]
    assert read.usage == TokenUsage(9, 8, 4, {"reasoning_tokens": 6})


def test_the_pieces_of_a_stream_are_one_answer() -> None:
    pieces: list[dict[str, Any]] = [
        {"candidates": [{"content": {"parts": [{"text": "H", "thought": True}]}, "index": 0}]},
        {"candidates": [{"content": {"parts": [{"text": "m", "thought": True}]}, "index": 0}]},
        {
            "candidates": [{"content": {"parts": [{"text": "Go"}]}, "index": 1}],
            "usageMetadata": {"promptTokenCount": 1},
        },
        {"candidates": [{"content": {"parts": [{"functionCall": {"name": "a"}}]}, "index": 0, "finishReason": "STOP"}]},
        {"candidates": [{"content": {"parts": [{"text": "."}, {"text": "", "thoughtSignature": "x"}]}, "index": 1}]},
        {"candidates": [{"index": 1, "finishReason": "MAX_TOKENS"}], "usageMetadata": {"promptTokenCount": 2}},
    ]
    assembled = DIALECT.assembled(pieces)
    assert assembled is not None
    first, second = assembled["candidates"]
    assert first["content"]["parts"] == [{"text": "Hm", "thought": True}, {"functionCall": {"name": "a"}}]
    assert second["content"]["parts"] == [{"text": "Go."}, {"text": "", "thoughtSignature": "x"}]
    assert (second["finishReason"], assembled["usageMetadata"]) == ("MAX_TOKENS", {"promptTokenCount": 2})
    assert DIALECT.assembled(pieces[:4]) is None, "the second candidate broke off"
    assert DIALECT.assembled(list(events_in(b"data: {}"))) is None


def test_parts_of_a_stream_that_lie_in_the_wrong_place_are_left_out() -> None:
    piece = {"index": 0, "parts": 5, "content": {"parts": [{"text": "Go"}]}, "finishReason": "STOP"}
    assembled = DIALECT.assembled([{"candidates": [piece]}])
    assert assembled is not None
    [candidate] = assembled["candidates"]
    assert candidate == {"index": 0, "content": {"role": "model", "parts": [{"text": "Go"}]}, "finishReason": "STOP"}


def test_a_callers_own_request_goes_on_with_what_this_server_sets() -> None:
    history = (Message("user", "go"),)
    own = {"contents": [{"parts": [{"text": "go"}]}], "generationConfig": {"topK": 3, "temperature": 0.1}}
    native = NativeRequest("gemini", own, history)
    sampling = Sampling(temperature=0.9, max_tokens=None, native=native)
    asked = DIALECT.request_body("m", history, n=2, sampling=sampling)
    assert asked == own | {"model": "m", "generationConfig": {"topK": 3, "temperature": 0.9, "candidateCount": 2}}
