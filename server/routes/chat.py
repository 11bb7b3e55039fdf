"""POST /v1/chat/completions: what OpenAI's clients ask, answered by the best of M candidates."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from qnet.errors import QGuideError
from server.chat import completion_of, read_request
from server.chat_schemas import (
    ChatCompletionRequest,
    GuidanceOptions,
    OpenAIErrorBody,
    options_of,
)
from server.completions import DONE, HEARTBEAT, chunks_of, event
from server.dependencies import ModelsDep, SettingsDep, StepperDep
from server.errors import STATUSES, known_error_response, unknown_error_response
from server.stepping import Asked, Stepper

router = APIRouter(prefix="/v1", tags=["openai"])

_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

Completing = asyncio.Task[dict[str, Any]]


_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A completion, or with `stream` its chunks.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    },
    **{status: {"model": OpenAIErrorBody} for status in STATUSES},
}


@router.post("/chat/completions", response_class=JSONResponse, responses=_RESPONSES)
async def complete_chat(
    body: ChatCompletionRequest,
    request: Request,
    settings: SettingsDep,
    models: ModelsDep,
    stepper: StepperDep,
) -> Response:
    """Draw M candidates, return the one with the highest Q as an ordinary completion."""
    options = options_of(body.qguide, request.headers)
    asked = read_request(body, options, models.find_policy(body.model), settings)
    completing = _complete(asked, options, stepper)
    if not body.stream:
        return JSONResponse(await completing)
    task = asyncio.create_task(completing)
    # What fails at once still gets a status of its own; later it can only be an event.
    await asyncio.wait({task}, timeout=settings.heartbeat_s)
    if task.done():
        task.result()
    return StreamingResponse(
        _events(task, request, include_usage=body.include_usage, heartbeat_s=settings.heartbeat_s),
        media_type="text/event-stream",
        headers=_STREAM_HEADERS,
    )


async def _complete(asked: Asked, options: GuidanceOptions, stepper: Stepper) -> dict[str, Any]:
    return completion_of(await stepper.take(asked), n=asked.n, options=options)


async def _events(
    task: Completing, request: Request, *, include_usage: bool, heartbeat_s: float
) -> AsyncIterator[bytes]:
    """Signs of life until the decision stands, then the winner; the work ends with the client."""
    try:
        while not task.done():
            yield HEARTBEAT
            await asyncio.wait({task}, timeout=heartbeat_s)
        for chunk in chunks_of(task.result(), include_usage=include_usage):
            yield event(chunk)
        yield DONE
    except QGuideError as error:
        yield event(_body(known_error_response(request, error)))
    except Exception as error:  # the stream has begun; nobody above can still answer
        yield event(_body(unknown_error_response(request, error)))
    finally:
        task.cancel()


def _body(response: JSONResponse) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(bytes(response.body))
    return read
