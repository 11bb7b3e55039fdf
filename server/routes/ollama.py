"""POST /api/chat, /api/generate: Ollama's API, answered with the best candidate; its lists."""

import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from qguide.qnet.dialects.ollama import OPTIONS, answer_of, chat_of, chat_of_prompt, generated, lines_of, sign_of_life
from qguide.qnet.dialects.shapes import Json
from qguide.qnet.errors import UnsupportedParameterError
from qguide.server.chat.answers import ChatGuidance
from qguide.server.chat.schemas import GuidanceOptions, WholeRequest, chat_request_of, options_of
from qguide.server.chat.translation import completion_of, read_request
from qguide.server.guidance.guided_step import GuidedStepService
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.http.bodies import UndeclaredBodyRoute, translate_body
from qguide.server.http.dialect_routes import DialectRoutes
from qguide.server.http.error_bodies import Failure, Told
from qguide.server.http.error_table import STATUSES
from qguide.server.http.event_stream import EventStream, EventWriter, described_errors
from qguide.server.own_bodies.answers import Absent
from qguide.server.own_bodies.schemas import NOT_EMPTY, Integer, ListOf, Whole
from qguide.server.q_models.registry import Models
from qguide.server.q_models.served import ServedPolicy
from qguide.server.routes.dependencies import ModelsDep, StepperDep
from qguide.server.settings.allowed_parameters import without_effect
from qguide.server.settings.settings import Settings

router = APIRouter(prefix="/api", tags=["ollama"], route_class=UndeclaredBodyRoute)

_NDJSON: Final = "application/x-ndjson"
_API_VERSION: Final = "0.12.6"
"""Version of Ollama whose fields these routes have; some clients refuse servers below 0.6."""
_LATEST: Final = ":latest"
_CALLED_HERE: Final = {"stop": "options.stop", "response_format": "format", "reasoning_effort": "think"} | {
    chat: f"options.{name}" for name, chat in OPTIONS.items()
}


class OllamaErrorBody(BaseModel):
    """Error response of these routes."""

    error: str


class OllamaFunction(Whole):
    """Name and arguments of a called function."""

    name: str
    arguments: dict[str, Any] | None = None


class OllamaCall(Whole):
    """A call of a function that the caller runs."""

    id: str | None = None
    function: OllamaFunction


class OllamaMessage(Whole):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    images: ListOf[str] | None = Field(default=None, description="JPEG, PNG, GIF, WebP in base64")
    tool_calls: ListOf[OllamaCall] | None = None
    tool_name: str | None = Field(default=None, description="of the call whose result this is")
    tool_call_id: str | None = Field(
        default=None, description="of the call; without it, the first open call of `tool_name`"
    )


class OllamaOptions(Whole):
    """Options of the draws; those of Ollama's own engine have no effect."""

    num_predict: Integer | None = Field(default=None, description="below 0 is no limit")


class OllamaRequest(WholeRequest):
    """Base of Ollama's request bodies."""

    model: str
    stream: bool | None = Field(default=None, description="null is true")
    format: str | dict[str, Any] | None = Field(default=None, description="`json`, or the JSON schema of the answer")
    think: bool | str | None = Field(
        default=None, description="false leaves out thoughts; `low`, `medium`, `high` are sent on"
    )
    options: OllamaOptions | None = None
    qguide: GuidanceOptions = GuidanceOptions()


class OllamaChatRequest(OllamaRequest):
    """Ollama's request body of a chat."""

    messages: ListOf[OllamaMessage] = Field(json_schema_extra=NOT_EMPTY)
    tools: ListOf[dict[str, Any]] | None = None


class OllamaGenerateRequest(OllamaRequest):
    """Ollama's request body of a prompt."""

    prompt: str = Field(default="", description="empty: nothing is drawn")
    system: str | None = None
    images: ListOf[str] | None = Field(default=None, description="JPEG, PNG, GIF, WebP in base64")


class OllamaReply(BaseModel):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str
    thinking: str | Absent = None
    tool_calls: list[OllamaCall] | Absent = None


class OllamaEnd(BaseModel):
    """Fields of an answer, or of a line of it; only the last line has all."""

    model: str = Field(description="name of the policy")
    created_at: datetime
    done: bool
    done_reason: Literal["stop", "length", "load"] | Absent = None
    total_duration: int | Absent = Field(default=None, description="in nanoseconds")
    prompt_eval_count: int | Absent = Field(default=None, description="tokens of all prompts")
    eval_count: int | Absent = Field(default=None, description="tokens of all candidates")
    eval_duration: int | Absent = Field(default=None, description="of the draws, in nanoseconds")
    qguide: ChatGuidance | Absent = None


class OllamaAnswer(OllamaEnd):
    """The answer of a chat with the best candidate, or a line of it."""

    message: OllamaReply


class OllamaGenerated(OllamaEnd):
    """The answer to a prompt with the best candidate, or a line of it."""

    response: str
    thinking: str | Absent = None


class OllamaModel(BaseModel):
    """A policy as Ollama lists its models."""

    name: str
    model: str
    modified_at: datetime
    size: Literal[0] = 0
    digest: Literal[""] = ""
    details: dict[str, str] = Field(default_factory=dict)


class OllamaModels(BaseModel):
    """The policies."""

    models: list[OllamaModel]


class OllamaShowRequest(Whole):
    """Name of a policy."""

    model: str


class OllamaShown(BaseModel):
    """A policy as Ollama shows a model."""

    modified_at: datetime
    details: dict[str, str] = Field(default_factory=dict)
    model_info: dict[str, str | int]
    capabilities: list[Literal["completion", "tools"]]


class OllamaVersion(BaseModel):
    """Version of Ollama whose API this is, and of this server."""

    version: str
    qguide: str


def error_of(failure: Failure) -> Told:
    """An error in this format, which has the message alone."""
    return failure.status, {"error": failure.message}


DIALECT: Final = DialectRoutes(router, re.compile("/api/(?!v1(beta)?/).*", re.DOTALL), error_of, OllamaErrorBody)
_ERRORS: Final = described_errors(OllamaErrorBody, STATUSES)


def _described(answer: type[OllamaEnd]) -> dict[int | str, dict[str, Any]]:
    schema = {"$ref": f"#/components/schemas/{answer.__name__}"}
    told = {
        "description": "The answer, or with `stream` its lines.",
        "model": answer,
        "content": {_NDJSON: {"schema": schema}},
    }
    return {200: told, **_ERRORS}


@router.post("/chat", response_class=JSONResponse, responses=_described(OllamaAnswer))
async def ollama_chat(body: OllamaChatRequest, request: Request, stepper: StepperDep) -> Response:
    """Draw M candidates and return the one that is chosen by Q as Ollama's answer."""
    return await _answered(body, body.model_dump(exclude={"qguide"}), request, stepper)


@router.post("/generate", response_class=JSONResponse, responses=_described(OllamaGenerated))
async def ollama_generate(body: OllamaGenerateRequest, request: Request, stepper: StepperDep) -> Response:
    """Draw M candidates for a prompt and return the one that is chosen by Q."""
    if not (body.prompt or body.images):  # Ollama's clients load a model so
        policy = _policy(body.model, stepper.models)
        line = sign_of_life(policy.name, time.time()) | {"done": True, "done_reason": "load"}
        return JSONResponse(generated(line))
    asked = chat_of_prompt(body.model_dump(exclude={"qguide"}))
    return await _answered(body, asked, request, stepper, told=generated)


async def _answered(
    body: OllamaRequest,
    asked: Json,
    request: Request,
    stepper: GuidedStepService,
    *,
    told: Callable[[Json], Json] = lambda line: line,
) -> Response:
    options = options_of(body.qguide, request.headers)
    policy = _policy(body.model, stepper.models)
    read = partial(_read, body, asked, options, policy, stepper.settings)
    step, warnings = await translate_body(request, read)

    async def complete() -> Json:
        completion = completion_of(await stepper.take(step), n=1, options=options)
        return answer_of(completion, thinks=body.think is not False, warnings=warnings)

    if body.stream is False:
        return JSONResponse(told(await complete()))

    def written(line: Json) -> bytes:
        return json.dumps(told(line), ensure_ascii=False).encode(errors="replace") + b"\n"

    writer = EventWriter(lines_of, written=written, sign=lambda: written(sign_of_life(policy.name, time.time())))
    return EventStream(request, complete, writer, media_type=_NDJSON)


@router.get("/tags", responses=_ERRORS)
@router.get("/ps", responses=_ERRORS)
async def list_ollama_models(models: ModelsDep) -> OllamaModels:
    """List the policies as Ollama lists its models, and those of them that it has loaded."""
    started = datetime.fromtimestamp(models.started_at, UTC)
    return OllamaModels(models=[OllamaModel(name=name, model=name, modified_at=started) for name in models.policies])


@router.post("/show", responses=_ERRORS)
async def show_ollama_model(body: OllamaShowRequest, models: ModelsDep) -> OllamaShown:
    """Show a policy as Ollama shows a model."""
    policy = _policy(body.model, models)
    known: dict[str, str | int] = {"general.architecture": "qguide"}
    return OllamaShown(
        modified_at=datetime.fromtimestamp(models.started_at, UTC),
        model_info=known | ({"qguide.context_length": policy.context} if policy.context else {}),
        capabilities=["completion", "tools"] if policy.upstream_model else ["completion"],
    )


@router.get("/version", responses=_ERRORS)
async def ollama_version() -> OllamaVersion:
    """Tell the version of Ollama whose API this is."""
    return OllamaVersion(version=_API_VERSION, qguide=version("qguide"))


def _policy(name: str, models: Models) -> ServedPolicy:
    """A policy by its name, to which Ollama's clients may add a tag."""
    return models.find_policy(name if name in models.policies else name.removesuffix(_LATEST))


def _read(
    body: OllamaRequest, asked: Json, options: GuidanceOptions, policy: ServedPolicy, settings: Settings
) -> tuple[GuidedStepRequest, tuple[str, ...]]:
    if suffix := body.parameters.get("suffix"):
        raise UnsupportedParameterError(
            f"suffix is {str(suffix)[:40]!r}, but a chat fills nothing in; leave it out", parameter="suffix"
        )
    chat, dropped = chat_of(asked)
    step = read_request(chat_request_of(chat), options, policy, settings, names=_CALLED_HERE)
    return step, without_effect(dropped | body.parameters.keys())
