"""The fake upstream in other dialects too: Anthropic's messages, OpenAI's responses and Gemini, as chats.

Written apart from the codecs in `qguide.qnet.dialects`, so that a test with the fake can find their
mistakes. It knows what the tests send, and no more.
"""

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from qguide.qnet.dialects.shapes import Json
from qguide.server.chat.fake_openai import FakeUpstream, error_response, without_stream
from tests.support.gemini_upstream import chat_of_content, content_error, content_events, content_of_chat
from tests.support.reworded_answers import as_stream, reworded, waiting

_CACHED_ANEW: Final = 1
"""Tokens of a prompt that the fake says to have cached for its answer."""
_STOP_REASONS: Final = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
_OVERLOADED: Final = 529
_CLICK: Final = {"type": "click", "button": "left", "x": 1, "y": 2}
_OWN: Final[Json] = {
    "shell": {"action": {"commands": ["ls"]}},
    "local_shell": {"action": {"type": "exec", "command": ["ls"], "env": {}}},
    "computer": {"actions": [_CLICK], "pending_safety_checks": []},
    "computer_use_preview": {"action": _CLICK, "pending_safety_checks": []},
}
"""Tools of OpenAI's that the caller runs, and what the fake asks of them."""
_TEXTS: Final = {"text": "text_delta", "thinking": "thinking_delta"}


@dataclass
class DialectUpstream(FakeUpstream):
    """The fake upstream; a dialect without `n` gets the next choice for each repeated request.

    Attributes:
        repeated: how often each body in such a dialect has come.
        betas: their anthropic-beta headers.
        counts: it has the dialects' routes that count tokens and compact.
        odd: fields that the answers of its other routes than chats' have in place of theirs.
    """

    counts: bool = True
    odd: Json = field(default_factory=dict)
    repeated: Counter[str] = field(default_factory=Counter)
    betas: list[str | None] = field(default_factory=list)

    def app(self) -> FastAPI:
        """Build the FastAPI application."""
        app = super().app()
        app.add_api_route("/v1/messages", self.message, methods=["POST"])
        app.add_api_route("/v1/completions", self.complete_text, methods=["POST"])
        app.add_api_route("/v1/embeddings", self.embed, methods=["POST"])
        files = ("/v1/files", "/v1/files/{name}", "/v1/files/{name}/content")
        batches = ("/v1/batches", "/v1/batches/{name}/cancel")
        for path in (*files, *batches):
            app.add_api_route(path, self.lie, methods=["GET", "POST", "DELETE"])
        app.add_api_route("/v1/responses", self.respond, methods=["POST"])
        app.add_api_route("/v1/models/{model}:{method}", self.generate, methods=["POST"])
        if self.counts:
            app.add_api_route("/v1/messages/count_tokens", self.count, methods=["POST"])
            app.add_api_route("/v1/responses/input_tokens", self.count, methods=["POST"])
            app.add_api_route("/v1/responses/compact", self.compact, methods=["POST"])
        return app

    async def served(self, request: Request, body: Json, asked: Json | None = None) -> Response:
        """The answer to a chat, whose key may be in a dialect's own header."""
        self.betas.append(request.headers.get("anthropic-beta"))
        self.keys += [request.headers[name] for name in ("x-api-key", "x-goog-api-key") if name in request.headers]
        return await super().served(request, body, asked)

    async def count(self, request: Request) -> Response:
        """POST /v1/messages/count_tokens and /v1/responses/input_tokens, by the body's length."""
        body: Json = await request.json()
        self.asked.append(body)
        self.betas.append(request.headers.get("anthropic-beta"))
        if extra := body.keys() & {"max_tokens", "max_output_tokens", "store", "stream", "n"}:
            return error_response(400, f"{sorted(extra)}: Extra inputs are not permitted")
        return JSONResponse({"input_tokens": len(json.dumps(body))})

    async def complete_text(self, request: Request) -> Response:
        """POST /v1/completions, as vLLM has it."""
        body: Json = await request.json()
        self.asked.append(body)
        logprobs = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": None}
        choice = {"index": 0, "text": "a", "finish_reason": "length"}
        choice["logprobs"] = logprobs if "logprobs" in body else None
        usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "fake"}
        return await self._beside(head | {"choices": [choice], "usage": usage})

    async def embed(self, request: Request) -> Response:
        """POST /v1/embeddings, the same for every text."""
        body: Json = await request.json()
        self.asked.append(body)
        if "input" not in body:
            return error_response(400, "input is missing")
        data = [
            {"object": "embedding", "index": index, "embedding": [0.5, 0.25]} for index in range(len(body["input"]))
        ]
        usage = {"prompt_tokens": len(data), "total_tokens": len(data)}
        head = {"object": "list", "model": "fake"}
        return await self._beside(head | {"data": data, "usage": usage})

    async def _beside(self, answer: Json) -> Response:
        await asyncio.sleep(self.delay_s)
        return JSONResponse(answer | self.odd)

    async def lie(self, request: Request) -> Response:
        """The routes of files and batches, with one of each."""
        self.asked.append({"path": request.url.path, "query": dict(request.query_params)})
        self.keys.append(request.headers.get("authorization"))
        name, deletes = request.path_params.get("name"), request.method == "DELETE"
        if name == "file-unknown":
            return error_response(404, "no such file")
        if name == "file-busy":
            return error_response(429, "slow down", "rate_limit_exceeded", {"Retry-After": "7"})
        if request.url.path.endswith("/content"):
            return Response(b"{}\n", media_type="application/octet-stream")
        if "/batches" in request.url.path:
            status = "cancelling" if name else "validating"
            given = {} if name else await request.json()
            return JSONResponse({"id": "batch_1", "object": "batch", "status": status} | given)
        file = {"id": "file-1", "object": "file", "filename": "in.jsonl", "deleted": deletes}
        lists = request.method == "GET" and name is None
        return await self._beside({"object": "list", "data": [file]} if lists else file)

    async def compact(self, request: Request) -> Response:
        """POST /v1/responses/compact: OpenAI's, whose content only OpenAI reads."""
        self.asked.append(await request.json())
        item = {"id": "cmp_1", "type": "compaction", "encrypted_content": "theirs"}
        usage = {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 0}}
        usage |= {"output_tokens": 2, "output_tokens_details": {"reasoning_tokens": 0}}
        head = {"id": "resp_1", "object": "response.compaction", "created_at": 1}
        return await self._beside(head | {"output": [item], "usage": usage | {"total_tokens": 5}})

    async def message(self, request: Request) -> Response:
        """POST /v1/messages: Anthropic's."""
        body: Json = await request.json()
        thinks = (body.get("thinking") or {}).get("type") not in (None, "disabled")
        answered = await self._translated(request, body, chat_of_message)
        if answered.status_code == 200:
            said = reworded(answered, lambda chat: message_of_chat(chat, thinks=thinks))
            return as_stream(said, message_events) if body.get("stream") else said
        error = json.loads(bytes(answered.body))["error"]
        status, refusal = message_error(answered.status_code, error)
        return JSONResponse(refusal, status, headers=waiting(answered))

    async def respond(self, request: Request) -> Response:
        """POST /v1/responses: OpenAI's."""
        body: Json = await request.json()
        answered = await self._translated(request, body, chat_of_response)
        if answered.status_code != 200:
            return answered
        said = reworded(answered, response_of_chat)
        return as_stream(said, response_events) if body.get("stream") else said

    async def generate(self, request: Request, model: str, method: str) -> Response:
        """POST /v1/models/MODEL:generateContent, :streamGenerateContent and :countTokens: Gemini's."""
        body: Json = await request.json()
        if method == "countTokens":
            self.asked.append(body)
            return JSONResponse({"totalTokens": len(json.dumps(body["generateContentRequest"]))})
        streams = method == "streamGenerateContent" and request.query_params["alt"] == "sse"
        asked = body | ({"stream": True} if streams else {})
        answered = await self._translated(request, asked, lambda _: chat_of_content(body, model))
        if (status := answered.status_code) != 200:
            refusal = content_error(status, json.loads(bytes(answered.body))["error"])
            return JSONResponse(refusal, status, headers=waiting(answered))
        said = reworded(answered, lambda chat: content_of_chat(chat, body))
        return as_stream(said, content_events) if streams else said

    async def _translated(self, request: Request, body: Json, to_chat: Callable[[Json], Json]) -> Response:
        key = json.dumps(without_stream(body), sort_keys=True)
        self.repeated[key] += 1
        try:
            chat = to_chat(body)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return error_response(400, str(error))
        return await self.served(request, chat | {"seed": self.repeated[key] - 1}, body)


def chat_of_message(body: Json) -> Json:
    """The chat completion that a request for a message asks for."""
    if not isinstance(body.get("max_tokens"), int):
        raise ValueError("max_tokens: Field required")
    if "n" in body or "seed" in body:
        raise ValueError("n, seed: Extra inputs are not permitted")
    system = body.get("system") or []
    turns = [{"role": "system", "content": _text(system)}] if system else []
    for turn in body["messages"]:
        turns.extend(_turns(turn["role"], turn["content"]))
    chat: Json = {"model": body["model"], "messages": turns}
    if tools := body.get("tools"):
        functions = [{"name": t["name"], "parameters": t.get("input_schema", {})} for t in tools if "name" in t]
        chat["tools"] = [{"type": "function", "function": function} for function in functions]
    if (body.get("tool_choice") or {}).get("type") == "none":
        chat["tool_choice"] = "none"
    if schema := ((body.get("output_config") or {}).get("format") or {}).get("schema"):
        answer = {"name": "answer", "schema": schema}
        chat["response_format"] = {"type": "json_schema", "json_schema": answer}
    return chat


def message_of_chat(completion: Json, *, thinks: bool) -> Json:
    """The message that says the same as a chat completion's first choice."""
    choice, usage = completion["choices"][0], completion["usage"]
    said, cached = choice["message"], usage["prompt_tokens_details"]["cached_tokens"]
    written = min(_CACHED_ANEW, usage["prompt_tokens"] - cached)
    content: list[Json] = []
    if thinks:
        content.append({"type": "thinking", "thinking": "Let me see.", "signature": "fake"})
    if said["content"]:
        content.append({"type": "text", "text": said["content"]})
    for call in said.get("tool_calls") or ():
        function = call["function"]
        given = json.loads(function["arguments"])
        block = {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}
        content.append(block)
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": completion["model"],
        "content": content,
        "stop_reason": _STOP_REASONS[choice["finish_reason"]],
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage["prompt_tokens"] - cached - written,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": written,
            "output_tokens": usage["completion_tokens"],
        },
    }


def message_error(status: int, error: Json) -> tuple[int, Json]:
    """Status and body of an error of a chat completion, as Anthropic has them."""
    kinds = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}
    said = error["message"]
    if error["code"] == "context_length_exceeded":
        said = "prompt is too long: 9 tokens > 8 maximum"
    kind = "overloaded_error" if status == 503 else kinds.get(status, "api_error")
    detail = {"type": kind, "message": said}
    return _OVERLOADED if status == 503 else status, {"type": "error", "error": detail}


def chat_of_response(body: Json) -> Json:
    """The chat completion that a request for a response asks for."""
    if unknown := {"n", "seed", "messages", "max_tokens", "stop"} & body.keys():
        raise ValueError(f"Unknown parameter: {sorted(unknown)[0]!r}.")
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    turns = [{"role": "system", "content": body["instructions"]}] if "instructions" in body else []
    turns += [turn for item in items for turn in _item_turns(item)]
    chat: Json = {"model": body["model"], "messages": turns}
    if tools := body.get("tools"):
        chat["tools"] = [
            {"type": "function", "function": {"name": tool["type"]}}
            if tool["type"] in _OWN
            else {"type": tool["type"], tool["type"]: tool}
            for tool in tools
        ]
    if body.get("tool_choice") == "none":
        chat["tool_choice"] = "none"
    format_ = (body.get("text") or {}).get("format") or {}
    if format_.get("type") == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": format_}
    if "message.output_text.logprobs" in body.get("include", ()):
        chat["logprobs"] = True
    return chat


def response_of_chat(completion: Json) -> Json:
    """The response that says the same as a chat completion's first choice."""
    choice, usage = completion["choices"][0], completion["usage"]
    said, tokens = choice["message"], (choice["logprobs"] or {}).get("content") or []
    thought = {"id": f"rs_{uuid.uuid4().hex}", "type": "reasoning", "summary": []}
    output: list[Json] = [thought | {"encrypted_content": "fake"}]
    if said["content"]:
        text = {"type": "output_text", "text": said["content"], "annotations": []}
        item = {"type": "message", "role": "assistant", "status": "completed"}
        parts = [text | {"logprobs": tokens}]
        output.append({"id": f"msg_{uuid.uuid4().hex}"} | item | {"content": parts})
    output += [_call_item(call) for call in said.get("tool_calls") or ()]
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": completion["created"],
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": completion["model"],
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 1},
            "total_tokens": usage["total_tokens"],
        },
    }


def _text(content: str | Sequence[Json]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content if "text" in block)


def _turns(role: str, content: str | Sequence[Json]) -> Iterator[Json]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for block in blocks:
        if block["type"] == "tool_result":
            text = _text(block.get("content", ""))
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}
    text = _text(blocks)
    calls = [_called(block) for block in blocks if block["type"] == "tool_use"]
    if text or calls:
        yield {"role": role, "content": text, **({"tool_calls": calls} if calls else {})}


def _called(block: Json) -> Json:
    function = {"name": block["name"], "arguments": json.dumps(block["input"])}
    return {"id": block["id"], "type": "function", "function": function}


def _item_turns(item: Json) -> Iterator[Json]:
    match item.get("type", "message"):
        case "message":
            yield {"role": item["role"], "content": _text(item["content"])}
        case "function_call" | "custom_tool_call" as kind:
            fields = ("custom", "input") if "custom" in kind else ("function", "arguments")
            called = {"name": item["name"], fields[1]: item[fields[1]]}
            call = {"id": item["call_id"], "type": fields[0], fields[0]: called}
            yield {"role": "assistant", "content": None, "tool_calls": [call]}
        case "function_call_output" | "custom_tool_call_output":
            output = _text(item["output"])
            yield {"role": "tool", "tool_call_id": item["call_id"], "content": output}
        case "shell_call" | "local_shell_call" | "computer_call" as kind:
            said = item.get("action") or item["actions"]
            function = {"name": kind.removesuffix("_call"), "arguments": json.dumps(said)}
            call = {"id": item["call_id"], "type": "function", "function": function}
            yield {"role": "assistant", "content": None, "tool_calls": [call]}
        case "shell_call_output" | "local_shell_call_output" | "computer_call_output":
            call_id = item.get("call_id") or item["id"]
            yield {"role": "tool", "tool_call_id": call_id, "content": json.dumps(item["output"])}
        case "compaction":
            yield {"role": "user", "content": item["encrypted_content"]}


def _call_item(call: Json) -> Json:
    kind = call["type"]
    if own := _OWN.get(call[kind]["name"]):
        name = call[kind]["name"].removesuffix("_use_preview")
        item = {"id": f"sh_{uuid.uuid4().hex}", "type": f"{name}_call"}
        return item | {"status": "completed", "call_id": call["id"], **own}
    names = {"function": "function_call", "custom": "custom_tool_call"}
    item = {"id": f"fc_{uuid.uuid4().hex}", "type": names[kind], "status": "completed"}
    return item | {"call_id": call["id"], **call[kind]}


def message_events(message: Json) -> Iterator[Json]:
    """The events of a message of Anthropic's."""
    yield {"type": "message_start", "message": message | {"content": [], "stop_reason": None}}
    for index, block in enumerate(message["content"]):
        kind, place = block["type"], {"index": index}
        empty: Json = {"input": {}} if kind == "tool_use" else {kind: ""}
        yield {"type": "content_block_start", **place, "content_block": block | empty}
        if kind == "tool_use":
            delta: Json = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        else:
            delta = {"type": _TEXTS[kind], kind: block[kind]}
        yield {"type": "content_block_delta", **place, "delta": delta}
        yield {"type": "content_block_stop", **place}
    end = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": end, "usage": message["usage"]}
    yield {"type": "message_stop"}


def response_events(response: Json) -> Iterator[Json]:
    """The first and the last event of a response; those between them say nothing more."""
    yield {"type": "response.created", "response": response | {"status": "in_progress"}}
    yield {"type": "response.completed", "response": response}
