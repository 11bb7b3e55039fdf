"""POST /v1/messages: Anthropic's API, answered with the best of M candidates."""

import re
from dataclasses import replace
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from qguide.qnet.dialects.anthropic_answers import events_of
from qguide.qnet.dialects.shapes import Json
from qguide.server.anthropic.answers import AnthropicMessage, MessageEvent
from qguide.server.anthropic.errors import OVERLOADED, AnthropicErrorBody, error_of
from qguide.server.anthropic.schemas import CountTokensRequest, MessagesRequest, Prompt
from qguide.server.anthropic.tool_definitions import require_known_tools
from qguide.server.anthropic.translation import CALLED_HERE, answer_of, chat_prompt, read_message
from qguide.server.chat.schemas import GuidanceOptions, options_of
from qguide.server.chat.token_count import CountedTokens, count_tokens
from qguide.server.chat.translation import Translated, completion_of, read_request
from qguide.server.guidance.pass_through import as_it_came, native_answer
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.http.bodies import BodyRoute, translate_body
from qguide.server.http.dialect_routes import DialectRoutes
from qguide.server.http.error_table import STATUSES
from qguide.server.http.event_stream import EventWriter, answer_or_events, answered, described_errors, named_event
from qguide.server.q_models.served import ServedPolicy
from qguide.server.routes.dependencies import StepperDep
from qguide.server.settings.settings import Settings

router = APIRouter(prefix="/v1/messages", tags=["anthropic"], route_class=BodyRoute)
DIALECT: Final = DialectRoutes(
    router,
    re.compile("/v1/messages(/.*)?", re.DOTALL),
    error_of,
    AnthropicErrorBody,
    event=MessageEvent,
    error_event="error",
    unversioned=("messages",),
)

_ERRORS: Final = described_errors(AnthropicErrorBody, (*STATUSES, OVERLOADED))
_BETA: Final = re.compile(r"(?!oauth-)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""A beta that an upstream is asked for; that of a login goes with a token, and ours is a key."""
_BETAS: Final = "anthropic-beta"
_MOST_BETAS: Final = 32
_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: answer_or_events(
        AnthropicMessage,
        MessageEvent,
        description="A message, or with `stream` its events.",
        event_description="One event; its `event` line has the same name as its data's `type`.",
    ),
    **_ERRORS,
}


@router.post("", response_class=JSONResponse, responses=_RESPONSES)
async def create_message(body: MessagesRequest, request: Request, stepper: StepperDep) -> Response:
    """Draw M candidates and return the one that is chosen by Q as an ordinary message."""
    options = options_of(body.qguide, request.headers)
    policy = stepper.models.find_policy(body.model)
    read = partial(_read, body, options, policy, stepper.settings, _betas(request))
    step, asked = await translate_body(request, read)

    async def complete() -> Json:
        taken = await stepper.take(step)
        return answer_of(completion_of(taken, n=1, options=options), asked, native_answer(taken, "messages"))

    ping = named_event({"type": "ping"})  # which clients skip
    writer = EventWriter(events_of, written=named_event, sign=lambda: ping) if body.stream else None
    return await answered(request, complete, writer)


@router.post("/count_tokens", responses=_ERRORS)
async def count_message_tokens(body: CountTokensRequest, request: Request) -> CountedTokens:
    """Count the tokens of a prompt, by the policy's tokenizer or else by the Q model's."""
    native = partial(_as_it_came, body=body, betas=_betas(request))
    prompt = partial(chat_prompt, body)
    return await count_tokens(request, prompt, native, model=body.model, q_model=body.qguide.q_model)


def _read(
    body: MessagesRequest, options: GuidanceOptions, policy: ServedPolicy, settings: Settings, betas: tuple[str, ...]
) -> tuple[GuidedStepRequest, Translated]:
    asked = read_message(body)
    step = read_request(asked.chat, options, policy, settings, names=CALLED_HERE)
    step = _as_it_came(step, body, settings, betas)
    if step.sampling.native is None or options.policies:  # several upstreams get a translation
        require_known_tools(body.tools or ())
        return step, asked
    return step, replace(asked, warnings=())  # of what an upstream of another dialect would not get


def _as_it_came(step: GuidedStepRequest, body: Prompt, settings: Settings, betas: tuple[str, ...]) -> GuidedStepRequest:
    step = as_it_came(step, body, "messages", settings, without=frozenset({"seed"}))
    if native := step.sampling.native:
        native = replace(native, headers={_BETAS: ",".join(betas)} if betas else {})
        step = replace(step, sampling=replace(step.sampling, native=native))
    return step


def _betas(request: Request) -> tuple[str, ...]:
    asked_for = map(str.strip, request.headers.get(_BETAS, "").split(","))
    return tuple(filter(_BETA.fullmatch, asked_for))[:_MOST_BETAS]
