"""POST /v1/completions: OpenAI's API before chats, answered with the best of M candidates."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from qguide.qnet.dialects.shapes import Json
from qguide.server.chat.schemas import GuidanceOptions, OpenAIErrorBody, options_of
from qguide.server.chat.text_completions import (
    CompletionRequest,
    TextCompletion,
    TextWriter,
    text_completion_of,
    to_chat_request,
    with_best_of,
)
from qguide.server.chat.translation import completion_of, read_request
from qguide.server.guidance.guided_step import GuidedStepService
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.http.bodies import BodyRoute
from qguide.server.http.error_table import STATUSES
from qguide.server.http.event_stream import EventStream, answer_or_events, described_errors
from qguide.server.routes.dependencies import StepperDep

router = APIRouter(prefix="/v1", tags=["openai"], route_class=BodyRoute)

_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: answer_or_events(
        TextCompletion,
        TextCompletion,
        description="A completion, or with `stream` its parts.",
        event_description="One event: a part as JSON, the [DONE] at the end, or an error.",
        named=False,
    ),
    **described_errors(OpenAIErrorBody, STATUSES),
}


@router.post("/completions", response_class=JSONResponse, responses=_RESPONSES)
async def complete_text(body: CompletionRequest, request: Request, stepper: StepperDep) -> Response:
    """Draw M candidates and return the one with the highest Q as an ordinary completion.

    Policies answer chats: the prompt is their user message.
    """
    settings = stepper.settings
    options = with_best_of(options_of(body.qguide, request.headers), body.best_of)
    policy = stepper.models.find_policy(body.model)
    asked = read_request(to_chat_request(body), options, policy, settings)
    complete = partial(_complete, asked, options, stepper)
    if not body.stream:
        return JSONResponse(await complete())
    writer = TextWriter(include_usage=body.include_usage)
    return EventStream(request, complete, writer, heartbeat_s=settings.heartbeat_s)


async def _complete(
    asked: GuidedStepRequest, options: GuidanceOptions, stepper: GuidedStepService
) -> Json:
    taken = await stepper.take(asked)
    return text_completion_of(completion_of(taken, n=asked.n, options=options))
