"""POST /v1/responses: OpenAI's Responses API, answered with the best of M candidates."""

from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from server.chat.schemas import GuidanceOptions, OpenAIErrorBody, options_of
from server.chat.translation import completion_of
from server.errors.table import STATUSES
from server.guidance.guided_step import GuidedStepRequest, GuidedStepService
from server.responses.answers import ResponseEvent, ResponseObject
from server.responses.output import finished, opened
from server.responses.schemas import ResponsesRequest
from server.responses.streaming import ResponseWriter
from server.responses.translation import read_request
from server.routes.dependencies import StepperDep
from server.streaming.event_stream import EventStream
from server.streaming.events import Json

router = APIRouter(prefix="/v1", tags=["openai"])

_EVENT: Final = {
    "description": "One event: its type as its name, and the event as JSON.",
    "type": "object",
    "properties": {
        "event": {"type": "string"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": f"#/components/schemas/{ResponseEvent.__name__}"},
        },
    },
    "required": ["event", "data"],
}

_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A response, or with `stream` its events.",
        "model": ResponseObject,
        "content": {"text/event-stream": {"schema": _EVENT}},
    },
    **{status: {"model": OpenAIErrorBody} for status in STATUSES},
}


@router.post("/responses", response_class=JSONResponse, responses=_RESPONSES)
async def create_response(
    body: ResponsesRequest, request: Request, stepper: StepperDep
) -> Response:
    """Draw M candidates and return the one with the highest Q as an ordinary response.

    Nothing is stored: each request has its whole history, and `store` is answered with false.
    """
    settings = stepper.settings
    options = options_of(body.qguide, request.headers)
    policy = stepper.models.find_policy(body.model)
    asked = read_request(body, options, policy, settings)
    response = opened(body, model=policy.name)
    complete = partial(_complete, response, asked, options, stepper)
    if not body.stream:
        return JSONResponse(await complete())
    writer = ResponseWriter(response)
    return EventStream(request, complete, writer, heartbeat_s=settings.heartbeat_s)


async def _complete(
    response: Json, asked: GuidedStepRequest, options: GuidanceOptions, stepper: GuidedStepService
) -> Json:
    return finished(response, completion_of(await stepper.take(asked), n=1, options=options))
