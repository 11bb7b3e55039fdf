"""POST /v1/chat/completions: OpenAI's API, answered with the best of M candidates."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from qguide.server.chat.answers import ChatChunk, ChatCompletion, ChunkWriter
from qguide.server.chat.schemas import (
    ChatCompletionRequest,
    GuidanceOptions,
    OpenAIErrorBody,
    options_of,
)
from qguide.server.chat.translation import completion_of, read_request
from qguide.server.guidance.guided_step import GuidedStepService
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.http.bodies import BodyRoute, translate_body
from qguide.server.http.error_table import STATUSES
from qguide.server.http.event_stream import EventStream, answer_or_events, described_errors
from qguide.server.routes.dependencies import StepperDep

router = APIRouter(prefix="/v1", tags=["openai"], route_class=BodyRoute)

_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: answer_or_events(
        ChatCompletion,
        ChatChunk,
        description="A completion, or with `stream` its chunks.",
        event_description="One event: a chunk as JSON, the [DONE] at the end, or an error.",
        named=False,
    ),
    **described_errors(OpenAIErrorBody, STATUSES),
}


@router.post("/chat/completions", response_class=JSONResponse, responses=_RESPONSES)
async def complete_chat(
    body: ChatCompletionRequest, request: Request, stepper: StepperDep
) -> Response:
    """Draw M candidates and return the one with the highest Q as an ordinary completion."""
    settings = stepper.settings
    options = options_of(body.qguide, request.headers)
    policy = stepper.models.find_policy(body.model)
    asked = await translate_body(request, partial(read_request, body, options, policy, settings))
    complete = partial(_complete, asked, options, stepper)
    if not body.stream:
        return JSONResponse(await complete())
    writer = ChunkWriter(include_usage=body.include_usage)
    return EventStream(request, complete, writer, heartbeat_s=settings.heartbeat_s)


async def _complete(
    asked: GuidedStepRequest, options: GuidanceOptions, stepper: GuidedStepService
) -> dict[str, Any]:
    return completion_of(await stepper.take(asked), n=asked.n, options=options)
