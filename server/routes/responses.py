"""POST /v1/responses: OpenAI's Responses API, answered with the best of M candidates."""

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from starlette.background import BackgroundTask

from qguide.qnet.decision.guide import AT_UPSTREAM
from qguide.qnet.dialects import responses_answers
from qguide.qnet.dialects.shapes import Json
from qguide.qnet.errors import InvalidRequestError, QGuideError
from qguide.qnet.policies.answers import usage_of
from qguide.server.chat.schemas import GuidanceOptions, OpenAIErrorBody, WholeRequest, options_of
from qguide.server.chat.token_count import count_tokens
from qguide.server.chat.translation import completion_of
from qguide.server.guidance.pass_through import as_it_came, native_answer
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.http.bodies import BodyRoute, translate_body
from qguide.server.http.dialect_routes import DialectRoutes
from qguide.server.http.error_bodies import openai_error
from qguide.server.http.error_table import STATUSES, known_error_response, unknown_error_response
from qguide.server.http.errors import DrainingError
from qguide.server.http.event_stream import EventStream, OutlivingStream, answer_or_events, answered, described_errors
from qguide.server.own_bodies.schemas import ListOf
from qguide.server.q_models.served import ServedPolicy
from qguide.server.responses.answers import ResponseEvent, ResponseObject
from qguide.server.responses.compaction import ALONE, Compaction, CompactRequest, asking, compacted
from qguide.server.responses.output import ResponseWriter, failed, finished, opened, outputs_of, prepared, reopened
from qguide.server.responses.schemas import Continued, InputItem, ResponsesRequest
from qguide.server.responses.socket import OPENED, ResponsesSocket
from qguide.server.responses.stored import StoredResponses
from qguide.server.responses.translation import read_request, temperature_of, to_chat_request
from qguide.server.routes.dependencies import StepperDep
from qguide.server.settings.settings import Settings

router = APIRouter(prefix="/v1", tags=["openai"], route_class=BodyRoute)
DIALECT: Final = DialectRoutes(
    router,
    re.compile("/v1/(responses(/.*)?|conversations.*)", re.DOTALL),
    openai_error,
    OpenAIErrorBody,
    event=ResponseEvent,
    unversioned=("responses", "conversations"),
)

_STORED: Final = frozenset(("previous_response_id", "conversation", "background", "generate"))
"""Fields that this server has answered, with the items in their place."""
_ERRORS: Final = described_errors(OpenAIErrorBody, STATUSES)
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: answer_or_events(
        ResponseObject,
        ResponseEvent,
        description="A response, or with `stream` its events.",
        event_description="One event: its type as its name, and the event as JSON.",
    ),
    **_ERRORS,
}


Order = Literal["asc", "desc"]
Limit = Annotated[int, Query(ge=1, le=100)]


@router.post("/responses", response_class=JSONResponse, responses=_RESPONSES)
async def create_response(body: ResponsesRequest, request: Request, stepper: StepperDep) -> Response:
    """Draw M candidates and return the one that is chosen by Q as an ordinary response."""
    settings = stepper.settings
    stored = _stored(request)
    continued = await _continued(body, request)
    options = options_of(body.qguide, request.headers)
    policy = stepper.models.find_policy(body.model)
    socket: ResponsesSocket | None = getattr(request.state, "socket", None)
    keep = partial(stored.keep, continued, open_rows=socket.kept if socket else None)
    told = {"previous_response_id": body.previous_response_id, "store": stored.stores(body)}
    if body.generate is False:
        temperature = 1.0 if body.temperature is None else body.temperature
        response = opened(body, model=policy.name, temperature=temperature) | told

        async def complete() -> Json:  # without output: others continue the input
            answer = prepared(response)
            await keep(answer, {})
            return answer

    else:
        asked, response = await translate_body(request, partial(_read, continued.body, options, policy, settings))
        response |= told

        async def complete() -> Json:
            taken = await stepper.take(asked)
            completion = completion_of(taken, n=1, options=options)
            answer = finished(response, completion, native=native_answer(taken, "responses"))
            await keep(answer, outputs_of(taken, answer))
            return answer

    if body.background:
        return await _in_background(body, request, response, complete, stored, continued)
    writer = ResponseWriter(response) if body.stream else None
    return await answered(request, complete, writer)


async def _continued(body: ResponsesRequest, request: Request) -> Continued:
    """The request with what it continues, which may make a long one of it."""
    continued = await _stored(request).continued(body, size=len(await request.body()))
    request.state.body_is_long |= continued.is_long
    return continued


async def _in_background(
    body: ResponsesRequest,
    request: Request,
    response: Json,
    complete: Callable[[], Awaitable[Json]],
    stored: StoredResponses,
    continued: Continued,
) -> Response:
    """The response as it is queued, or its events.

    The work is within the request and its limits, and goes on without the client.
    """
    request.state.outlives_client = True  # else one that leaves now left it queued for ever
    await stored.begin(continued, response)

    def ended(told: Json, error: BaseException) -> Json:
        if isinstance(error, QGuideError):
            answer = known_error_response(request, error)
        elif isinstance(error, Exception):
            answer = unknown_error_response(request, error)
        else:
            answer = known_error_response(request, DrainingError("the server shut down"))
        return failed(told, json.loads(bytes(answer.body)))

    work = partial(stored.run, response, complete, ended)
    if not body.stream:
        return JSONResponse(response, background=BackgroundTask(work))
    return OutlivingStream(request, partial(stored.ended, response["id"]), ResponseWriter(response), work=work)


@router.post("/responses/input_tokens", responses=_ERRORS)
async def count_input_tokens(body: ResponsesRequest, request: Request) -> dict[str, Any]:
    """Count the tokens of an input, by the policy's tokenizer or else by the Q model's."""
    whole = (await _continued(body, request)).body
    native = partial(as_it_came, body=whole, dialect="responses", without=_STORED)

    def prompt() -> Json:
        return to_chat_request(whole).model_dump(exclude_unset=True)

    told = await count_tokens(request, prompt, native, model=body.model, q_model=body.qguide.q_model)
    return {"object": "response.input_tokens", **told.model_dump()}


@router.post("/responses/compact", response_model=Compaction, responses=_ERRORS, response_class=JSONResponse)
async def compact_input(body: CompactRequest, request: Request, stepper: StepperDep) -> Response:
    """Compact an input: by the upstream where it can, else to a summary by the policy.

    A summary is no step: one is drawn, outside of any episode.
    """
    settings = stepper.settings
    whole = (await _continued(body, request)).body
    policy = stepper.models.find_policy(body.model)
    options = options_of(body.qguide, request.headers).model_copy(update=ALONE)
    if policy.dialect == "responses" and policy.upstream:
        asked, _ = await translate_body(request, partial(_read, whole, options, policy, settings))
        async with stepper.deadline.enforce(AT_UPSTREAM):
            told = await policy.upstream.compact(asked.history, asked.sampling)
        if told is not None:
            spent = usage_of(responses_answers.completion_of(told))
            stepper.metrics.count_drawn(prompt=spent.prompt_tokens, completion=spent.completion_tokens)
            return JSONResponse(told)
    read = partial(_read, asking(whole), options, policy, settings)
    asked, response = await translate_body(request, read)
    alone = replace(stepper, session_id=None, agent_session="", outcome=None, earned=None)
    taken = await alone.take(replace(asked, agent_session=""))
    completion = completion_of(taken, n=1, options=options)
    return JSONResponse(compacted(whole, finished(response, completion)))


def _read(
    body: ResponsesRequest, options: GuidanceOptions, policy: ServedPolicy, settings: Settings
) -> tuple[GuidedStepRequest, Json]:
    asked = read_request(body, options, policy, settings)
    asked = as_it_came(asked, body, "responses", settings, without=_STORED)
    return asked, opened(body, model=policy.name, temperature=temperature_of(asked))


class NewMetadata(WholeRequest):
    """Data about a conversation, in place of what was there."""

    metadata: dict[str, Any] | None = None


class NewConversation(NewMetadata):
    """A conversation to begin."""

    items: ListOf[InputItem] | None = None


class NewItems(WholeRequest):
    """Items to add to a conversation."""

    items: ListOf[InputItem] = Field(description="in their order")


def _stored(request: Request) -> StoredResponses:
    stored: StoredResponses = request.app.state.stored
    return stored


@router.get("/responses", include_in_schema=False)
async def admit_websocket(request: Request) -> Response:
    """Admit a WebSocket; without them by the one status after which Codex goes on over HTTP."""
    socket: ResponsesSocket | None = getattr(request.state, "socket", None)
    if socket is None:
        raise HTTPException(
            426,
            "open a WebSocket here, where the operator allows any (QGUIDE_WEBSOCKETS_PER_KEY), or send POST "
            "/v1/responses, with `stream`",
            headers={"Upgrade": "websocket"},
        )
    socket.admit(request)
    return Response(status_code=OPENED)


@router.get("/responses/{response_id}", responses=_RESPONSES, response_class=JSONResponse)
async def show_response(response_id: str, request: Request, stream: bool = False, starting_after: int = -1) -> Response:
    """Show a stored response, or tell its events, as they come, after the one of a number."""
    stored = _stored(request)
    told = await stored.response(response_id)
    if not stream:
        return JSONResponse(told)
    writer = ResponseWriter(reopened(told), after=starting_after)
    return EventStream(request, partial(stored.ended, response_id), writer)


@router.post("/responses/{response_id}/cancel", responses=_ERRORS)
async def cancel_response(response_id: str, request: Request) -> dict[str, Any]:
    """Cancel a response in the background."""
    return await _stored(request).cancel(response_id)


@router.delete("/responses/{response_id}", responses=_ERRORS)
async def delete_response(response_id: str, request: Request) -> dict[str, Any]:
    """Delete a stored response; those that continue it can be continued no more."""
    await _stored(request).forget(f"response {response_id}")
    return {"id": response_id, "object": "response", "deleted": True}


@router.get("/responses/{response_id}/input_items", responses=_ERRORS)
async def list_input_items(
    response_id: str, request: Request, order: Order = "desc", limit: Limit = 20, after: str = ""
) -> dict[str, Any]:
    """List the items that a stored response answers."""
    return _page(await _stored(request).input_items(response_id), order, limit, after)


@router.post("/conversations", responses=_ERRORS)
async def begin_conversation(body: NewConversation, request: Request) -> dict[str, Any]:
    """Begin a conversation, which requests continue by its id."""
    return await _stored(request).converse(_items(body.items or ()), body.metadata or {})


@router.get("/conversations/{conversation_id}", responses=_ERRORS)
async def show_conversation(conversation_id: str, request: Request) -> dict[str, Any]:
    """Show a conversation without its items."""
    talk = await _stored(request).conversation(conversation_id)
    return {name: value for name, value in talk.items() if name != "items"}


@router.post("/conversations/{conversation_id}", responses=_ERRORS)
async def change_conversation(conversation_id: str, body: NewMetadata, request: Request) -> dict[str, Any]:
    """Replace a conversation's metadata."""
    if "metadata" not in body.model_fields_set:
        raise InvalidRequestError("metadata is missing; send what replaces it, {} for nothing")
    return await _stored(request).label(conversation_id, body.metadata or {})


@router.delete("/conversations/{conversation_id}", responses=_ERRORS)
async def delete_conversation(conversation_id: str, request: Request) -> dict[str, Any]:
    """Delete a conversation."""
    await _stored(request).forget(f"conversation {conversation_id}")
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


@router.get("/conversations/{conversation_id}/items", responses=_ERRORS)
async def list_conversation_items(
    conversation_id: str, request: Request, order: Order = "desc", limit: Limit = 20, after: str = ""
) -> dict[str, Any]:
    """List the items of a conversation."""
    talk = await _stored(request).conversation(conversation_id)
    return _page(talk["items"], order, limit, after)


@router.post("/conversations/{conversation_id}/items", responses=_ERRORS)
async def add_conversation_items(conversation_id: str, body: NewItems, request: Request) -> dict[str, Any]:
    """Add items to a conversation."""
    added = await _stored(request).say(conversation_id, _items(body.items))
    return _page(added, "asc", len(added), "")


@router.delete("/conversations/{conversation_id}/items/{item_id}", responses=_ERRORS)
async def delete_conversation_item(conversation_id: str, item_id: str, request: Request) -> dict[str, Any]:
    """Delete an item of a conversation."""
    return await _stored(request).unsay(conversation_id, item_id)


def _items(given: Sequence[InputItem]) -> list[Json]:
    return [item.model_dump(exclude_unset=True) for item in given]


def _page(items: Sequence[Json], order: Order, limit: int, after: str) -> Json:
    """A page of a list as OpenAI's clients turn it."""
    listed = list(items if order == "asc" else reversed(items))
    places = [place for place, item in enumerate(listed) if item.get("id") == after]
    listed = listed[places[0] + 1 :] if places else listed
    page = listed[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0].get("id") if page else None,
        "last_id": page[-1].get("id") if page else None,
        "has_more": len(listed) > limit,
    }
