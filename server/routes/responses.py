"""POST /v1/responses: OpenAI's Responses API, answered with the best of M candidates."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from qguide.server.bodies.parsing import translate_body
from qguide.server.bodies.route import BodyRoute
from qguide.server.chat.schemas import GuidanceOptions, OpenAIErrorBody, options_of
from qguide.server.chat.translation import completion_of
from qguide.server.errors.table import STATUSES
from qguide.server.guidance.guided_step import GuidedStepService
from qguide.server.guidance.native import as_it_came, native_answer
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.q_models.policies import ServedPolicy
from qguide.server.responses.answers import ResponseEvent, ResponseObject
from qguide.server.responses.output import finished, opened
from qguide.server.responses.schemas import ResponsesRequest
from qguide.server.responses.streaming import ResponseWriter
from qguide.server.responses.translation import read_request, temperature_of
from qguide.server.routes.dependencies import StepperDep
from qguide.server.settings.settings import Settings
from qguide.server.streaming.event_stream import EventStream
from qguide.server.streaming.events import Json
from qguide.server.streaming.openapi import answer_or_events

router = APIRouter(prefix="/v1", tags=["openai"], route_class=BodyRoute)

_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: answer_or_events(
        ResponseObject,
        ResponseEvent,
        description="A response, or with `stream` its events.",
        event_description="One event: its type as its name, and the event as JSON.",
    ),
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
    read = partial(_read, body, options, policy, settings)
    asked, response = await translate_body(request, read)
    complete = partial(_complete, response, asked, options, stepper)
    if not body.stream:
        return JSONResponse(await complete())
    writer = ResponseWriter(response)
    return EventStream(request, complete, writer, heartbeat_s=settings.heartbeat_s)


def _read(
    body: ResponsesRequest, options: GuidanceOptions, policy: ServedPolicy, settings: Settings
) -> tuple[GuidedStepRequest, Json]:
    """The step that is asked for, and the response as far as it is known before."""
    asked = read_request(body, options, policy, settings)
    asked = as_it_came(asked, body, "responses", settings, without=frozenset())
    return asked, opened(body, model=policy.name, temperature=temperature_of(asked))


async def _complete(
    response: Json, asked: GuidedStepRequest, options: GuidanceOptions, stepper: GuidedStepService
) -> Json:
    taken = await stepper.take(asked)
    completion = completion_of(taken, n=1, options=options)
    return finished(response, completion, native=native_answer(taken, "responses"))
