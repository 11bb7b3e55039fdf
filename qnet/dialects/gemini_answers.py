"""Answers of Gemini's generateContent, from and to chat completions, whole and streamed. Pure."""

import base64
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from qguide.qnet.chat_messages import reply_text
from qguide.qnet.dialects.anthropic_answers import read_call
from qguide.qnet.dialects.anthropic_requests import SIGNATURE, arguments_of
from qguide.qnet.dialects.gemini_requests import EXTRA
from qguide.qnet.dialects.shapes import (
    THOUGHTS,
    Count,
    Json,
    PiecedTexts,
    Said,
    calls_in,
    pieces_of,
    read_as,
    thoughts_in,
)

_FILTERED: Final = frozenset(
    ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY")
)
_FINISH_REASONS: Final = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}


class _Read(BaseModel):
    """A part of an answer; fields that it does not name are ignored."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel)


class _Call(_Read):
    name: str
    id: Said = ""
    args: dict[str, Any] | None = None


class _Part(_Read):
    text: Said = ""
    thought: bool | None = None
    thought_signature: Said = ""
    function_call: _Call | None = None


class _Content(_Read):
    parts: list[_Part] | None = None


class _Candidate(_Read):
    content: _Content | None = None
    finish_reason: str | None = None


class _Usage(_Read):
    prompt_token_count: Count = 0
    tool_use_prompt_token_count: Count = 0
    candidates_token_count: Count = 0
    thoughts_token_count: Count = 0
    cached_content_token_count: Count = 0


class _Feedback(_Read):
    block_reason: str | None = None


class _Counted(_Read):
    usage_metadata: _Usage | None = None


class _Answer(_Read):
    candidates: list[_Candidate] = Field(default_factory=list)
    prompt_feedback: _Feedback | None = None


def completion_of(answer: Json) -> Json:
    """The chat completion that says the same; without choices if this is no answer of Gemini's."""
    counted = read_as(_Counted, answer)
    completion: Json = {"usage": _chat_usage(counted.usage_metadata)} if counted and counted.usage_metadata else {}
    read = read_as(_Answer, answer)
    if read is None:
        return completion
    choices = [_choice(candidate, index) for index, candidate in enumerate(read.candidates)]
    if not choices and read.prompt_feedback and read.prompt_feedback.block_reason:
        choices = [_choice(_Candidate(finishReason="SAFETY"), 0)]
    return completion | ({"choices": choices} if choices else {})


def one_of(answer: Json, index: int) -> Json:
    """The answer with one of its candidates."""
    candidates = answer.get("candidates") or []
    return answer | {"candidates": candidates[index : index + 1]}


def _chat_usage(usage: _Usage) -> Json:
    """Gemini counts thoughts apart from the candidates' tokens."""
    return {
        "prompt_tokens": usage.prompt_token_count + usage.tool_use_prompt_token_count,
        "completion_tokens": usage.candidates_token_count + usage.thoughts_token_count,
        "prompt_tokens_details": {"cached_tokens": usage.cached_content_token_count},
        "completion_tokens_details": {"reasoning_tokens": usage.thoughts_token_count},
    }


def _choice(candidate: _Candidate, index: int) -> Json:
    parts = (candidate.content and candidate.content.parts) or []
    texts = [part for part in parts if not part.thought and part.function_call is None]
    message: Json = {"role": "assistant", "content": "".join(part.text for part in texts)}
    if calls := [_chat_call(part, part.function_call) for part in parts if part.function_call]:
        message["tool_calls"] = calls
    if thoughts := "".join(part.text for part in parts if part.thought):
        message[THOUGHTS[0]] = thoughts
    signatures = [part.thought_signature for part in texts if part.thought_signature]
    message |= _signed(signatures[-1] if signatures else "")
    reason = candidate.finish_reason
    finished = "length" if reason == "MAX_TOKENS" else "content_filter" if reason in _FILTERED else "stop"
    if calls and finished == "stop":
        finished = "tool_calls"
    return {"index": index, "message": message, "finish_reason": finished}


def _chat_call(part: _Part, call: _Call) -> Json:
    function = {"name": call.name, "arguments": arguments_of(call.args or {})}
    call_id = call.id or f"call_{uuid.uuid4().hex}"
    return {"id": call_id, "type": "function", "function": function} | _signed(part.thought_signature)


def _signed(signature: str) -> Json:
    """A thought's signature as Google's chat completions carry it."""
    return {EXTRA: {"google": {"thought_signature": signature}}} if signature else {}


def signature_of(field: str) -> str:
    """Signature of a thought, which names the upstream's field; Gemini's are base64."""
    return base64.b64encode(f"{SIGNATURE}{field}".encode()).decode()


OWN_SIGNATURES: Final = {signature_of(field): field for field in THOUGHTS}
"""Signatures of this server's thoughts, with their fields."""


def content_of(completion: Json, *, thinks: bool, native: Mapping[str, Any] | None = None) -> tuple[Json, list[str]]:
    """Gemini's answer with what a completion's first choice says, or the `native` one's candidate, and warnings."""
    choice, warnings = completion["choices"][0], list[str]()
    if native is not None and native.get("candidates"):
        candidate = {**native["candidates"][0], "index": 0}
        said = (candidate.get("content") or {}).get("parts")
        candidate["content"] = {"role": "model", "parts": said or [{"text": ""}]}
    else:
        parts, warnings = _parts_of(choice["message"], thinks=thinks)
        reason = _FINISH_REASONS.get(choice["finish_reason"], "STOP")
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": reason, "index": 0}
    return {
        "candidates": [candidate],
        "usageMetadata": _usage(completion["usage"]),
        "modelVersion": completion["model"],
        "responseId": uuid.uuid4().hex,
    }, warnings


def _parts_of(message: Json, *, thinks: bool) -> tuple[list[Json], list[str]]:
    """Parts of a reply, and warnings of calls whose arguments are not an object."""
    parts: list[Json] = []
    if thinks and (thoughts := thoughts_in(message)):
        field, said = thoughts
        signature = signature_of(field)
        parts.append({"text": said, "thought": True, "thoughtSignature": signature})
    if text := reply_text(message):
        parts.append({"text": text})
    warnings = []
    for call in calls_in(message):
        name, given, warning = read_call(call, "args")
        warnings += warning
        parts.append({"functionCall": {"id": call["id"], "name": name, "args": given}})
    return parts or [{"text": ""}], warnings


def _usage(usage: Json) -> Json:
    """Tokens of all candidates; Gemini counts thoughts apart from the candidates'."""
    thoughts = int(usage.get("completion_tokens_details", {}).get("reasoning_tokens") or 0)
    return {
        "promptTokenCount": usage["prompt_tokens"],
        "cachedContentTokenCount": usage["prompt_tokens_details"]["cached_tokens"],
        "candidatesTokenCount": usage["completion_tokens"] - thoughts,
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": usage["total_tokens"],
    }


def chunks_of(answer: Json) -> Iterator[Json]:
    """The answers of a stream, which together are the whole answer.

    None is without parts: Google's chats forget a turn with such an answer.
    """
    [candidate] = answer["candidates"]
    same = {name: answer[name] for name in ("modelVersion", "responseId")}
    *pieces, last = (piece for part in candidate["content"]["parts"] for piece in _pieces(part))
    for piece in pieces:
        content = {"role": "model", "parts": [piece]}
        yield {"candidates": [{"content": content, "index": candidate["index"]}], **same}
    yield answer | {"candidates": [candidate | {"content": {"role": "model", "parts": [last]}}]}


def _pieces(part: Json) -> Iterator[Json]:
    """A part with its text in pieces; an upstream's signature is in the last one alone."""
    if not part.get("text"):
        yield part
        return
    *first, last = pieces_of(part["text"])
    own = part.get("thoughtSignature") in OWN_SIGNATURES
    unsigned = part if own else {name: value for name, value in part.items() if name != "thoughtSignature"}
    for piece in first:
        yield unsigned | {"text": piece}
    yield part | {"text": last}


def assembled_content(events: Sequence[Mapping[str, Any]]) -> Json | None:
    """The answer that a stream's pieces add up to; None if it broke off before the candidates' end."""
    whole: Json = {}
    candidates: dict[int, Json] = {}
    texts = PiecedTexts()
    for event in events:
        whole |= {name: value for name, value in event.items() if value is not None}
        given = event.get("candidates")
        for candidate in given if isinstance(given, list) else ():
            if isinstance(candidate, dict):
                index = candidate.get("index")
                _extend(candidates.setdefault(index if isinstance(index, int) else 0, {"parts": []}), candidate, texts)
    texts.join()
    blocked = isinstance(feedback := whole.get("promptFeedback"), dict) and feedback.get("blockReason")
    if not (candidates or blocked) or not all(one.get("finishReason") for one in candidates.values()):
        return None
    said = []
    for index in sorted(candidates):
        parts = candidates[index].pop("parts")
        said.append(candidates[index] | {"content": {"role": "model", "parts": parts}, "index": index})
    return whole | {"candidates": said}


def _extend(candidate: Json, piece: Mapping[str, Any], texts: PiecedTexts) -> None:
    """Add a piece: its text goes on with the last part's if both are thoughts or neither is."""
    content = piece.get("content")
    candidate |= {name: value for name, value in piece.items() if name not in ("content", "parts")}
    parts = content.get("parts") if isinstance(content, dict) else None
    for part in parts if isinstance(parts, list) else ():
        last = candidate["parts"][-1] if candidate["parts"] else {}
        if _is_text(part) and _is_text(last) and bool(part.get("thought")) == bool(last.get("thought")):
            last |= {name: value for name, value in part.items() if name != "text"}
            texts.add(last, "text", part["text"])
        elif isinstance(part, dict):
            candidate["parts"].append(dict(part))


def _is_text(part: object) -> bool:
    """True for a text that may go on: Google wants parts with a signature back as they are."""
    return isinstance(part, dict) and isinstance(part.get("text"), str) and "thoughtSignature" not in part
