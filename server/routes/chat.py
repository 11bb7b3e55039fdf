"""POST /v1/chat/completions and /v1/completions, OpenAI's, answered with the best candidates."""

from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from qguide.qnet.dialects.shapes import Json
from qguide.qnet.errors import InvalidRequestError, UnsupportedParameterError
from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.qnet.work_context import all_of
from qguide.server.chat.answers import ChatChunk, ChatCompletion, ChunkWriter
from qguide.server.chat.schemas import (
    ChatCompletionRequest,
    GuidanceOptions,
    OpenAIErrorBody,
    options_of,
)
from qguide.server.chat.text_completions import (
    CompletionRequest,
    TextCompletion,
    TextWriter,
    joined,
    text_completion_of,
    text_request,
    to_chat_requests,
    with_best_of,
)
from qguide.server.chat.translation import completion_of, read_request
from qguide.server.guidance.guided_step import GuidedStepService
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.http.bodies import BodyRoute, translate_body
from qguide.server.http.error_table import STATUSES
from qguide.server.http.event_stream import answer_or_events, answered, described_errors
from qguide.server.q_models.policies import ServedPolicy
from qguide.server.routes.dependencies import StepperDep

router = APIRouter(prefix="/v1", tags=["openai"], route_class=BodyRoute)


def _responses(
    answer: type[BaseModel], part: type[BaseModel], parts: str
) -> dict[int | str, dict[str, Any]]:
    events = answer_or_events(
        answer,
        part,
        description=f"A completion, or with `stream` its {parts}s.",
        event_description=f"One event: a {parts} as JSON, the [DONE] at the end, or an error.",
        named=False,
    )
    return {200: events, **described_errors(OpenAIErrorBody, STATUSES)}


@router.post(
    "/chat/completions",
    response_class=JSONResponse,
    responses=_responses(ChatCompletion, ChatChunk, "chunk"),
)
async def complete_chat(
    body: ChatCompletionRequest, request: Request, stepper: StepperDep
) -> Response:
    """Draw M candidates and return the one with the highest Q as an ordinary completion."""
    settings = stepper.settings
    options = options_of(body.qguide, request.headers)
    policy = stepper.models.find_policy(body.model)
    asked = await translate_body(request, partial(read_request, body, options, policy, settings))
    complete = partial(_complete, asked, options, stepper)
    writer = ChunkWriter(include_usage=body.include_usage) if body.stream else None
    return await answered(request, complete, writer, heartbeat_s=settings.heartbeat_s)


@router.post(
    "/completions",
    response_class=JSONResponse,
    responses=_responses(TextCompletion, TextCompletion, "part"),
)
async def complete_text(body: CompletionRequest, request: Request, stepper: StepperDep) -> Response:
    """Draw M candidates and return the one with the highest Q as an ordinary completion.

    Policies answer chats: the prompt is their user message, and of several each a chat's.
    """
    settings = stepper.settings
    options = with_best_of(options_of(body.qguide, request.headers), body.best_of)
    policy = stepper.models.find_policy(body.model)
    if body.needs_texts:
        return JSONResponse(await _complete_texts(body, policy, stepper))
    if len(body.texts) > (most := settings.max_score_items):
        raise InvalidRequestError(
            f"prompt has {len(body.texts)} texts; send at most {most} (QGUIDE_MAX_SCORE_ITEMS)"
        )
    chats = to_chat_requests(body)
    if len(chats) > 1:  # no steps of one episode
        stepper = replace(stepper, session_id=None, agent_session="", outcome=None)
        options = options.model_copy(update={"episode_id": None})
    asked = [read_request(chat, options, policy, settings) for chat in chats]

    async def complete() -> Json:
        completions = await all_of([_complete(one, options, stepper) for one in asked])
        return joined([text_completion_of(completion) for completion in completions])

    writer = TextWriter(include_usage=body.include_usage) if body.stream else None
    return await answered(request, complete, writer, heartbeat_s=settings.heartbeat_s)


async def _complete_texts(
    body: CompletionRequest, policy: ServedPolicy, stepper: GuidedStepService
) -> Json:
    """The answer of the upstream's own completions, unguided."""
    sent = text_request(body, policy, stepper.settings.caller_fields)
    assert isinstance(policy.model, OpenAICompatiblePolicy)
    answer = await policy.model.ask("completions", sent, {})
    if answer is None:
        raise UnsupportedParameterError(
            f"{body.needs_texts} needs an upstream that completes texts, and {policy.name!r} has "
            "no such route; send texts without it",
            parameter=body.needs_texts,
        )
    usage = answer.get("usage") or {}
    stepper.metrics.count_drawn(
        prompt=int(usage.get("prompt_tokens") or 0),
        completion=int(usage.get("completion_tokens") or 0),
    )
    return answer | {"model": policy.name}


async def _complete(
    asked: GuidedStepRequest, options: GuidanceOptions, stepper: GuidedStepService
) -> Json:
    return completion_of(await stepper.take(asked), n=asked.n, options=options)
