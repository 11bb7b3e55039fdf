"""Fake server of a model for demos and tests: `qguide fake-upstream`.

It has no model: it replies from a script, calls the tools of the request, judges by a rule, and fails on demand. It
speaks chat completions.
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from qguide.qnet.chat_messages import text_of
from qguide.qnet.decision.threshold import noted_proposals
from qguide.qnet.dialects.chat_chunks import chunks_of
from qguide.qnet.dialects.shapes import Json
from qguide.server.chat.fake_replies import Fault, UnfitFormatError, json_reply, made_call, read_question
from qguide.server.http.event_stream import DONE, event

DEFAULT_REPLIES = (
    "Thought: I should look around first.\nAction: look",
    "Thought: I should check what I carry.\nAction: inventory",
    "Thought: The desk is a good place to start.\nAction: go to desk 1",
)
_HANG_S = 3600.0
_POLL_S = 0.01
_LOGPROB = -0.5


_STREAMING: Final = ("stream", "stream_options")


@dataclass
class FakeUpstream:
    """Scripted chat completions: choice k of turn t is reply t + k, cycling through the script.

    Proposals that the prompt says were judged poor count as choices already given.
    """

    replies: Sequence[str] = DEFAULT_REPLIES
    # function names and arguments, the script where the request has tools; without it the tools are called in turn with
    # arguments made from their schemas
    calls: Sequence[tuple[str, Json]] = ()
    fault: Fault = ""
    faults_after: int = 0  # number of requests to serve before the first fault
    faults_left: int | None = None  # number of faults left to inject; None is unlimited
    delay_s: float = 0.0
    piece_s: float = 0.0  # time before each piece of a stream
    delays_s: Sequence[float] = ()  # time of the first answers, in its place
    together: int = 0  # number of first requests that are answered only once all of them have arrived
    # bodies of the requests so far, oldest first, but for how they are to be sent
    asked: list[Json] = field(default_factory=list)
    streamed: int = 0  # number of requests that asked for a stream
    keys: list[str | None] = field(default_factory=list)  # Authorization
    sessions: list[str | None] = field(default_factory=list)
    traces: list[str | None] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    def app(self) -> FastAPI:
        """Build the FastAPI application."""
        app = FastAPI(title="QGuide's fake upstream")
        app.add_api_route("/v1/chat/completions", self.complete, methods=["POST"])
        app.add_api_route("/v1/models", self.models)
        app.add_api_route("/health", self.health)
        app.add_api_route("/asked", self.number_asked)
        return app

    async def health(self) -> Response:
        """GET /health, which always succeeds."""
        return Response()

    async def number_asked(self) -> Json:
        """GET /asked: the number of completion requests so far, including unanswered ones."""
        return {"requests": len(self.asked)}

    async def models(self) -> Json:
        """GET /v1/models, a list of one model."""
        card = {"id": "fake", "object": "model", "created": 0, "owned_by": "qguide"}
        return {"object": "list", "data": [card]}

    async def complete(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self.served(request, await request.json())

    async def served(self, request: Request, body: Json, asked: Json | None = None) -> Response:
        """The answer to a chat."""
        given = body if asked is None else asked
        delay_s = self.delay_s if len(self.asked) >= len(self.delays_s) else self.delays_s[len(self.asked)]
        self.asked.append(without_stream(given))
        self.streamed += bool(given.get("stream"))
        self.keys.append(request.headers.get("authorization"))
        self.sessions.append(request.headers.get("x-session-id"))
        self.traces.append(request.headers.get("traceparent"))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(delay_s)
            while len(self.asked) < self.together:
                await asyncio.sleep(_POLL_S)
            return await self._answer(body)
        finally:
            self.in_flight -= 1

    async def _answer(self, body: Json) -> Response:
        match self._failing(body):
            case "hang":
                await asyncio.sleep(_HANG_S)
            case "garbage":
                return Response("<html>it works</html>", media_type="text/html")
            case "empty":
                return JSONResponse({"object": "chat.completion", "choices": []})
            case "429":
                return error_response(429, "slow down", "rate_limit_exceeded", {"Retry-After": "1"})
            case "quota":
                return error_response(429, "pay your bill", "insufficient_quota")
            case "policy":
                return error_response(400, "this is not allowed", "content_policy_violation")
            case "context":
                return error_response(400, "reduce the length", "context_length_exceeded")
            case "500" | "503" | "401" as status:
                return error_response(int(status), "a secret of the upstream")
            case "refuse_n":
                return error_response(400, "n is not supported")
            case "reasoning" if refused := _refused_by_reasoning(body):
                return error_response(400, refused)
            case "ignore_n":
                body = body | {"n": 1}
            case "chatty":  # no answer to a judge's question
                body = body | {"chatty": True}
            case "refuse_top_k" if body.get("top_k"):
                return error_response(400, "Unrecognized request argument supplied: top_k")
            case "refuse_logprobs" if body.get("logprobs"):
                return error_response(400, "logprobs is not supported")
        if not body.get("messages"):
            return error_response(400, "messages is empty")
        try:
            completion = self._completion(body)
        except UnfitFormatError as error:
            return error_response(400, str(error))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return error_response(400, "a parameter is malformed")
        if self.fault == "half":
            completion["choices"][0]["message"]["content"] = "half \ud800"
            return Response(json.dumps(completion), media_type="application/json")
        if not body.get("stream"):
            return JSONResponse(completion)
        include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        events = [event(chunk) for chunk in chunks_of(completion, include_usage=include_usage)]
        return StreamingResponse(self._paced([*events, DONE]), media_type="text/event-stream")

    async def _paced(self, events: Sequence[bytes]) -> AsyncIterator[bytes]:
        for one in events:
            await asyncio.sleep(self.piece_s)
            yield one

    def _failing(self, body: Json) -> Fault:
        idle = self.fault == "refuse_n" and body.get("n", 1) == 1
        if idle or self.faults_left == 0 or len(self.asked) <= self.faults_after:
            return ""
        if self.faults_left is not None:
            self.faults_left -= 1
        return self.fault

    def _completion(self, body: Json) -> Json:
        choices = [self._choice(body, index) for index in range(body.get("n") or 1)]
        prompt = [_words(message) for message in body["messages"]]
        completion = sum(_words(choice["message"]) for choice in choices)
        thought = {"reasoning_tokens": len(choices)}
        return {
            **({"system_fingerprint": "fp_fake"} if body.get("seed") is not None else {}),
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.get("model", "fake"),
            "choices": choices,
            "usage": {
                "prompt_tokens": sum(prompt),
                "completion_tokens": completion,
                "total_tokens": sum(prompt) + completion,
                "prompt_tokens_details": {"cached_tokens": sum(prompt[:-1])},
                **({"completion_tokens_details": thought} if "reasoning_effort" in body else {}),
            },
        }

    def _choice(self, body: Json, index: int) -> Json:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        verdict = None if body.get("chatty") else read_question(body["messages"])
        if verdict:
            return verdict.choice(index, with_logprobs=bool(body.get("logprobs")))
        # The seed shifts the script, so that requests for a single choice can differ.
        k = turn + index + (body.get("seed") or 0) + noted_proposals(text_of(body["messages"][-1].get("content")))
        tools = body.get("tools") or []
        calls_tools = tools and body.get("tool_choice") != "none"
        message: Json = {"role": "assistant", "content": None}
        if calls_tools and body["messages"][-1]["role"] != "tool":
            message["tool_calls"] = [self._call(tools, k)]
        else:
            said = self.replies[k % len(self.replies)]
            as_json = json_reply(body.get("response_format"), said, k)
            message["content"] = said if as_json is None else as_json
        tokens = {"token_ids": list(range(_words(message))), "stop_reason": None}
        return {
            **(tokens if body.get("return_token_ids") else {}),
            "index": index,
            "message": message,
            "logprobs": _logprobs(message) if body.get("logprobs") else None,
            "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
        }

    def _call(self, tools: Sequence[Json], k: int) -> Json:
        if not self.calls:
            return made_call(tools[k % len(tools)], k)
        name, arguments = self.calls[k % len(self.calls)]
        function = {"name": name, "arguments": json.dumps(arguments)}
        return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}


def without_stream(body: Json) -> Json:
    """The body of a request, but for how its answer is to be sent."""
    return {name: value for name, value in body.items() if name not in _STREAMING}


def error_response(
    status: int, message: str, code: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """An error as OpenAI sends it; its type differs from what QGuide would call it."""
    kind = {429: "requests", 400: "invalid_request_error"}.get(status, "server_error")
    error = {"message": message, "type": kind, "param": None, "code": code}
    return JSONResponse({"error": error}, status_code=status, headers=headers)


def _refused_by_reasoning(body: Json) -> str:
    """Error message of OpenAI's reasoning models for a body; "" if they accept it."""
    if body.get("max_tokens") is not None:
        return "'max_tokens' is not supported with this model; use 'max_completion_tokens'"
    if body.get("temperature") not in (None, 1):
        return "'temperature' does not support this value; only the default (1) is supported"
    return ""


def _words(message: Json) -> int:
    calls = [
        call["custom"]["input"] if "custom" in call else call["function"]["arguments"]
        for call in message.get("tool_calls") or []
    ]
    return len(" ".join([text_of(message.get("content")), *calls]).split())


def _logprobs(message: Json) -> Json:
    words = (message["content"] or "").split()
    return {
        "content": [
            {"token": word, "logprob": _LOGPROB, "bytes": list(word.encode()), "top_logprobs": []} for word in words
        ],
        "refusal": None,
    }
