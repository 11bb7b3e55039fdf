"""POST /v1/chat/completions and /v1/completions, OpenAI's, answered with the best candidates."""

import re
from dataclasses import replace
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from qguide.qnet.decision.guide import AT_UPSTREAM
from qguide.qnet.dialects.chat_chunks import PassedChunks
from qguide.qnet.dialects.shapes import Json
from qguide.qnet.errors import InvalidRequestError, UnsupportedParameterError
from qguide.qnet.policies.answers import usage_of
from qguide.qnet.work import all_of
from qguide.server.chat.answers import ChatChunk, ChatCompletion
from qguide.server.chat.schemas import ChatCompletionRequest, GuidanceOptions, OpenAIErrorBody, options_of
from qguide.server.chat.text_completions import (
    CompletionRequest,
    TextCompletion,
    joined,
    parts_of,
    text_completion_of,
    text_request,
    to_chat_requests,
)
from qguide.server.chat.translation import completion_of, head_of, read_request
from qguide.server.episodes.service import OUTCOME_HEADER
from qguide.server.guidance.guided_step import GuidedStepService
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.http.bodies import BodyRoute, translate_body
from qguide.server.http.dialect_routes import DialectRoutes
from qguide.server.http.error_bodies import openai_error
from qguide.server.http.error_table import STATUSES
from qguide.server.http.event_stream import DONE, EventWriter, answer_or_events, answered, described_errors
from qguide.server.q_models.served import ServedPolicy
from qguide.server.routes.dependencies import StepperDep
from qguide.server.settings.settings import Settings

router = APIRouter(prefix="/v1", tags=["openai"], route_class=BodyRoute)
DIALECT: Final = DialectRoutes(
    router,
    re.compile("/v1/(chat/)?completions"),
    openai_error,
    OpenAIErrorBody,
    event=ChatChunk,
    unversioned=("chat/completions", "completions"),
)


def _responses(answer: type[BaseModel], part: type[BaseModel], parts: str) -> dict[int | str, dict[str, Any]]:
    events = answer_or_events(
        answer,
        part,
        description=f"A completion, or with `stream` its {parts}s.",
        event_description=f"One event: a {parts} as JSON, the [DONE] at the end, or an error.",
        named=False,
    )
    return {200: events, **described_errors(OpenAIErrorBody, STATUSES)}


@router.post("/chat/completions", response_class=JSONResponse, responses=_responses(ChatCompletion, ChatChunk, "chunk"))
async def complete_chat(body: ChatCompletionRequest, request: Request, stepper: StepperDep) -> Response:
    """Draw M candidates and return the one that is chosen by Q as an ordinary completion."""
    settings = stepper.settings
    options = options_of(body.qguide, request.headers)
    policy = stepper.models.find_policy(body.model)
    asked = await translate_body(request, partial(read_request, body, options, policy, settings))
    complete = partial(_complete, asked, options, stepper)
    chunks = PassedChunks(head_of(policy.name), include_usage=body.include_usage)
    writer = EventWriter(chunks.rest_of, end=DONE, passed=chunks.chunk_of) if body.stream else None
    return await answered(request, complete, writer)


@router.post("/completions", response_class=JSONResponse, responses=_responses(TextCompletion, TextCompletion, "part"))
async def complete_text(body: CompletionRequest, request: Request, stepper: StepperDep) -> Response:
    """Draw M candidates and return the one that is chosen by Q as an ordinary completion.

    Policies answer chats: the prompt is their user message, and of several each a chat's.
    """
    settings = stepper.settings
    options = options_of(body.qguide, request.headers)
    if options.num_candidates is None:
        options = options.model_copy(update={"num_candidates": body.best_of})
    policy = stepper.models.find_policy(body.model)
    if body.num_prompts > (most := settings.max_score_items):
        raise InvalidRequestError(f"there are {body.num_prompts} prompts; send at most {most} (QGUIDE_MAX_SCORE_ITEMS)")
    if stepper.outcome is not None and (body.needs_texts or body.num_prompts > 1):
        raise InvalidRequestError(
            f"the header {OUTCOME_HEADER} ends an episode after its step, and neither several prompts nor an "
            "upstream's own completions are one; post the outcome to /v1/episodes/ID/outcome"
        )
    if body.needs_texts:
        return JSONResponse(await _complete_texts(body, policy, request, stepper))
    if body.num_prompts > 1:  # no steps of one episode
        stepper = replace(stepper, session_id=None, agent_session="")
        options = options.model_copy(update={"episode_id": None})
    asked = await translate_body(request, partial(_read_texts, body, options, policy, settings))

    async def complete() -> Json:
        completions = await all_of([_complete(one, options, stepper) for one in asked])
        return joined([text_completion_of(completion) for completion in completions])

    pieces = partial(parts_of, include_usage=body.include_usage)
    writer = EventWriter(pieces, end=DONE) if body.stream else None
    return await answered(request, complete, writer)


def _read_texts(
    body: CompletionRequest, options: GuidanceOptions, policy: ServedPolicy, settings: Settings
) -> list[GuidedStepRequest]:
    """The step of each prompt; several are no steps of the session that the body names."""
    asked = [read_request(chat, options, policy, settings) for chat in to_chat_requests(body)]
    return [replace(one, agent_session="") for one in asked] if len(asked) > 1 else asked


async def _complete_texts(
    body: CompletionRequest, policy: ServedPolicy, request: Request, stepper: GuidedStepService
) -> Json:
    stepper.check_num_candidates(max(body.n or 1, body.best_of or 1))
    fields = stepper.settings.caller_fields
    sent = await translate_body(request, partial(text_request, body, policy, fields))
    async with stepper.deadline.enforce(AT_UPSTREAM):
        answer = await stepper.models.remote[policy.name].ask("completions", sent, {})
    if answer is None:
        raise UnsupportedParameterError(
            f"{body.needs_texts} needs an upstream that completes texts, and {policy.name!r} has no such route; send "
            "texts without it",
            parameter=body.needs_texts,
        )
    spent = usage_of(answer)
    stepper.metrics.count_drawn(prompt=spent.prompt_tokens, completion=spent.completion_tokens)
    return answer | {"model": policy.name}


async def _complete(asked: GuidedStepRequest, options: GuidanceOptions, stepper: GuidedStepService) -> Json:
    return completion_of(await stepper.take(asked), n=asked.n, options=options)
