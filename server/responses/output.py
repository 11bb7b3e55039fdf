"""The response object, whole and as a stream of events: from a chat completion."""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count
from typing import Any, Final

from qguide.qnet.dialects.responses_answers import (
    INCOMPLETE,
    closing_events,
    failure_events,
    opening_events,
    output_of,
    usage_of,
)
from qguide.qnet.dialects.shapes import Json
from qguide.server.chat.translation import choice_of
from qguide.server.guidance.step_types import GuidedStepResult
from qguide.server.http.event_stream import EventWriter, named_event
from qguide.server.responses.schemas import ResponsesRequest
from qguide.server.responses.translation import called_names

_NEEDED: Final[Mapping[str, Json]] = {
    "function": {"description": None, "parameters": None, "strict": None},
    "json_schema": {"description": None, "strict": False},
}
"""Fields that an answer's tools and formats have even if the request's did not, by their type."""


def opened(body: ResponsesRequest, *, model: str, temperature: float) -> Json:
    """The response before its output is known, with OpenAI's defaults for what was not given."""
    reasoning = body.reasoning
    text = body.text.model_dump(exclude_none=True) if body.text else {}
    format_ = text.get("format", {"type": "text"})
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "queued" if body.background else "in_progress",
        "background": bool(body.background),
        "error": None,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": body.presence_penalty or 0.0,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {name: reasoning and getattr(reasoning, name) for name in ("effort", "summary")},
        "safety_identifier": body.safety_identifier,
        "service_tier": body.service_tier or "auto",
        "store": False,
        "temperature": temperature,
        "text": text | {"format": _NEEDED.get(format_["type"], {}) | format_},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": [_NEEDED.get(tool.type, {}) | tool.model_dump(exclude_none=True) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def reopened(response: Json) -> Json:
    """A stored response as it was before its answer."""
    status = "queued" if response["background"] else "in_progress"
    nothing: Json = dict.fromkeys(("completed_at", "error", "incomplete_details", "usage"))
    known = {name: value for name, value in response.items() if name != "qguide"}
    return known | nothing | {"status": status, "output": []}


def finished(response: Json, completion: Json, *, native: Mapping[str, Any] | None = None) -> Json:
    """The response with its output.

    Args:
        completion: the chat completion that answers the same request; its first choice is the output.
        native: the response of an upstream of the same dialect, whose items are the output.
    """
    choice = completion["choices"][0]
    reason = INCOMPLETE.get(choice["finish_reason"])
    status = "incomplete" if reason else "completed"
    output = native and native["output"]
    tier = (native or completion).get("service_tier")
    return response | {
        "service_tier": tier if isinstance(tier, str) and tier else response["service_tier"],
        "status": status,
        "completed_at": None if reason else int(time.time()),
        "incomplete_details": {"reason": reason} if reason else None,
        "output": output or _output_of(choice, response, status),
        "usage": usage_of(completion["usage"]),
        "qguide": completion["qguide"],
    }


def prepared(response: Json) -> Json:
    """The response for which nothing was drawn."""
    unspent = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    usage = usage_of(unspent | {"prompt_tokens_details": {"cached_tokens": 0}})
    return response | {"status": "completed", "completed_at": int(time.time()), "usage": usage}


def outputs_of(taken: GuidedStepResult, response: Json) -> dict[str, list[Json]]:
    """Items of every candidate by its number; the chosen one's are those of the answer."""
    outputs = {}
    for number, candidate in enumerate(taken.decision.candidates):
        native = candidate.native
        if native and native.dialect == "responses":
            outputs[str(number)] = native.body["output"]
        else:
            outputs[str(number)] = _output_of(choice_of(0, candidate), response, "completed")
    return outputs | {str(taken.decision.chosen): response["output"]}


def _output_of(choice: Json, response: Json, status: str) -> list[Json]:
    summarized = response["reasoning"]["summary"] is not None
    return output_of(choice, called_names(response["tools"]), status, summarized=summarized)


def failed(response: Json, error: Json) -> Json:
    """The response after a failure."""
    detail = {name: error["error"][name] for name in ("code", "message")}
    return response | {"status": "failed", "error": detail}


class ResponseWriter(EventWriter):
    """The events of one response, numbered in their order."""

    def __init__(self, response: Json, *, after: int = -1) -> None:
        super().__init__(closing_events, written=self._numbered)
        self._response = response
        self._opening = filter(None, map(self._numbered, opening_events(response)))
        self._numbers = count()
        self._after = after  # number of the last event that the caller has; -1 for none

    def waiting(self) -> Iterable[bytes]:
        """The first events; from then on comments, which clients skip."""
        return tuple(self._opening) or super().waiting()

    def finished(self, answer: Json) -> Iterator[bytes]:
        """The output and the end."""
        return chain(self._opening, filter(None, super().finished(answer)))

    def failed(self, error: Json) -> Iterator[bytes]:
        """The error and the end."""
        ended = failure_events(failed(self._response, error), error)
        return chain(self._opening, map(self._numbered, ended))

    def _numbered(self, one: Json) -> bytes:
        """The event; nothing if the caller has it."""
        number = next(self._numbers)
        return named_event(one | {"sequence_number": number}) if number > self._after else b""
