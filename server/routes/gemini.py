"""POST /v1beta/models/MODEL:generateContent: Gemini's API, answered with the best candidate."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from qguide.qnet.dialects.gemini_answers import chunks_of
from qguide.qnet.dialects.shapes import Json
from qguide.server.chat.schemas import GuidanceOptions, options_of
from qguide.server.chat.token_count import count_tokens
from qguide.server.chat.translation import Translated, completion_of, read_request
from qguide.server.gemini.answers import CountedContent, GeminiModel, GeminiModels, GeneratedContent
from qguide.server.gemini.errors import GeminiErrorBody, error_of
from qguide.server.gemini.schemas import CountContentRequest, GeminiPrompt, GenerateContentRequest
from qguide.server.gemini.translation import CALLED_HERE, answer_of, chat_prompt, known_config, read_content
from qguide.server.guidance.guided_step import GuidedStepService
from qguide.server.guidance.pass_through import as_it_came, native_answer
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.http.bodies import BodyRoute, translate_body
from qguide.server.http.dialect_routes import DialectRoutes
from qguide.server.http.error_table import STATUSES
from qguide.server.http.event_stream import EventStream, EventWriter, answer_or_events, described_errors
from qguide.server.q_models.served import ServedPolicy
from qguide.server.routes.dependencies import ModelsDep, StepperDep
from qguide.server.settings.settings import Settings

router = APIRouter(tags=["gemini"], route_class=BodyRoute)
_METHODS: Final = ("generateContent", "streamGenerateContent", "countTokens")
_NOT_HERE: Final = ("embedContent", "batchEmbedContents", "predict", "predictLongRunning")
_PATHS: Final = re.compile(rf"/v1beta/.*|/v1/models/.*:({'|'.join((*_METHODS, *_NOT_HERE))})", re.DOTALL)
DIALECT: Final = DialectRoutes(router, _PATHS, error_of, GeminiErrorBody)

_MODEL: Final = "/v1beta/models/{model}"
_STABLE: Final = "/v1/models/{model}"
"""Google's SDK asks here unless it is told `api_version`; the same routes, documented once."""

_ERRORS: Final = described_errors(GeminiErrorBody, STATUSES)
_ANSWERED: Final[dict[int | str, dict[str, Any]]] = {200: {"model": GeneratedContent}, **_ERRORS}
_STREAMED: Final[dict[int | str, dict[str, Any]]] = {
    200: answer_or_events(
        list[GeneratedContent],
        GeneratedContent,
        description="A list of answers with a piece each, or with `alt=sse` their events.",
        event_description="One event: an answer with a piece of the content.",
        named=False,
    ),
    **_ERRORS,
}


@router.get("/v1beta/models", responses=_ERRORS, response_model_exclude_none=True)
async def list_gemini_models(models: ModelsDep) -> GeminiModels:
    """List the policies as Gemini lists its models."""
    return GeminiModels(models=[_card(policy) for policy in models.policies.values()])


@router.get(_MODEL, responses=_ERRORS, response_model_exclude_none=True)
async def show_gemini_model(model: str, models: ModelsDep) -> GeminiModel:
    """Show a policy as Gemini shows a model."""
    return _card(models.find_policy(model))


@router.post(f"{_STABLE}:generateContent", response_class=JSONResponse, include_in_schema=False)
@router.post(f"{_MODEL}:generateContent", response_class=JSONResponse, responses=_ANSWERED)
async def generate_content(model: str, body: GenerateContentRequest, request: Request, stepper: StepperDep) -> Response:
    """Draw M candidates and return the one that is chosen by Q as Gemini's answer."""
    complete = await _asked(model, body, request, stepper)
    return JSONResponse(await complete())


@router.post(f"{_STABLE}:streamGenerateContent", response_class=JSONResponse, include_in_schema=False)
@router.post(f"{_MODEL}:streamGenerateContent", response_class=JSONResponse, responses=_STREAMED)
async def stream_content(
    model: str,
    body: GenerateContentRequest,
    request: Request,
    stepper: StepperDep,
    alt: Annotated[str, Query(description="`sse` for server-sent events")] = "json",
) -> Response:
    """Draw M candidates and return the one that is chosen by Q in pieces."""
    complete = await _asked(model, body, request, stepper)
    if alt != "sse":
        return JSONResponse(list(chunks_of(await complete())))
    # Google's client for Python takes a comment for broken JSON; an event without data is none.
    writer = EventWriter(chunks_of, sign=lambda: b"\n\n")
    return EventStream(request, complete, writer)


@router.post(f"{_STABLE}:countTokens", include_in_schema=False)
@router.post(f"{_MODEL}:countTokens", responses=_ERRORS)
async def count_content_tokens(model: str, body: CountContentRequest, request: Request) -> CountedContent:
    """Count the tokens of a prompt, by the policy's tokenizer or else by the Q model's."""
    counted = body.generate_content_request or body
    prompt, native = partial(chat_prompt, counted, model), partial(_as_it_came, body=counted)
    told = await count_tokens(request, prompt, native, model=model, q_model=body.qguide.q_model)
    return CountedContent(total_tokens=told.input_tokens, qguide=told.qguide)


async def _asked(
    model: str, body: GenerateContentRequest, request: Request, stepper: GuidedStepService
) -> Callable[[], Awaitable[Json]]:
    """Read the request; what is returned draws and answers."""
    options = options_of(body.qguide, request.headers)
    policy = stepper.models.find_policy(model)
    step, asked = await translate_body(request, partial(_read, body, model, options, policy, stepper.settings))

    async def complete() -> Json:
        taken = await stepper.take(step)
        return answer_of(completion_of(taken, n=1, options=options), asked, native_answer(taken, "gemini"))

    return complete


def _read(
    body: GenerateContentRequest, model: str, options: GuidanceOptions, policy: ServedPolicy, settings: Settings
) -> tuple[GuidedStepRequest, Translated]:
    asked = read_content(body, model)
    step = read_request(asked.chat, options, policy, settings, names=CALLED_HERE)
    step = _as_it_came(step, body, settings)
    own = step.sampling.native is not None and not options.policies  # several upstreams get a translation
    return step, replace(asked, warnings=()) if own else asked


def _as_it_came(step: GuidedStepRequest, body: GeminiPrompt, settings: Settings) -> GuidedStepRequest:
    step = as_it_came(step, body, "gemini", settings, without=frozenset())
    native = step.sampling.native
    if native is None or "generationConfig" not in native.body:
        return step
    config, dropped = known_config(native.body["generationConfig"])
    native = replace(native, body={**native.body, "generationConfig": config})
    return replace(step, sampling=replace(step.sampling, native=native), warnings=(*step.warnings, *dropped))


def _card(policy: ServedPolicy) -> GeminiModel:
    return GeminiModel(
        name=f"models/{policy.name}",
        version="1",
        display_name=policy.name,
        description=f"A policy of this server: {policy.source}",
        supported_generation_methods=list(_METHODS),
        input_token_limit=policy.context,
    )
