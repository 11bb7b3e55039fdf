"""Request and error bodies of POST /v1/chat/completions, with the `qguide` extension."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from qguide.qnet.body_limits import MOST_LEVELS, exceeds_max_depth
from qguide.qnet.chat_messages import calls_of, reply_text
from qguide.qnet.errors import InvalidRequestError
from qguide.qnet.types import Message, Role
from qguide.server.own_bodies.answers import StoppedField
from qguide.server.own_bodies.schemas import (
    AT_LEAST_ONE,
    NOT_EMPTY,
    CalledFunction,
    ContentPart,
    CustomCallBody,
    Integer,
    ListOf,
    Positive,
    Seed,
    StepOptions,
    Temperature,
    ToolCallBody,
    Whole,
)

_HEADER: Final = "x-qguide-"
_NO_OPTIONS: Final = ("x-qguide-timeout-s", "x-qguide-outcome", "x-qguide-earned", "x-qguide-replica")
"""X-QGuide headers that are not options of a step: the deadline and the outcome are read for every route, and the
replica is for the proxy."""


class GuidanceOptions(StepOptions):
    """Guidance options, which OpenAI's body has no fields for."""

    num_candidates: Integer | None = Field(
        default=None,
        description="M, how many candidates to draw; null takes the server's default",
        json_schema_extra=AT_LEAST_ONE,
    )
    temperature: Temperature | None = Field(
        default=None, description="of the candidates; overrides the body's `temperature`"
    )
    return_candidates: bool = Field(default=False, description="include all candidates and their Q in the answer")


class ChatTurn(Whole):
    """One message of a conversation, passed on to an upstream unchanged."""

    role: Role | Literal["function"]
    content: str | ListOf[ContentPart] | None = None
    tool_calls: ListOf[ToolCallBody | CustomCallBody] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = Field(default=None, description="OpenAI's deprecated form of a tool call")

    def to_message(self) -> Message:
        """Convert to `qnet`'s message; parts that are not text are kept only in its `wire`."""
        calls = calls_of(self.tool_calls, self.function_call)
        given = self.model_dump(exclude_unset=True)
        wire = {name: value for name, value in given.items() if value is not None}
        if "content" in given:
            wire["content"] = given["content"]
        role: Role = "tool" if self.role == "function" else self.role
        return Message(role, reply_text(wire), calls, self.tool_call_id or "", wire)


class StreamOptions(Whole):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None


class WholeRequest(Whole):
    """Base of request bodies whose unknown fields are kept; deep nesting is refused."""

    @model_validator(mode="before")
    @classmethod
    def _is_flat(cls, body: object) -> object:
        """Refuse deep nesting: writing JSON again takes more stack than reading it did."""
        if exceeds_max_depth(body):
            raise PydanticCustomError(
                "too_deep",
                "lists and objects are nested more than {most} levels deep; send a flatter body",
                {"most": MOST_LEVELS},
            )
        return body

    @property
    def parameters(self) -> dict[str, Any]:
        """Unknown parameters of the request that are not null."""
        given = self.model_extra or {}
        return {name: value for name, value in given.items() if value is not None}


class ChatCompletionRequest(WholeRequest):
    """OpenAI's request body; an upstream gets the parameters that callers may set."""

    messages: ListOf[ChatTurn] = Field(json_schema_extra=NOT_EMPTY)
    model: str | None = Field(default=None, description="the policy; null takes the default")
    n: Positive | None = Field(default=None, description="number of candidates to return, best first")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    seed: Seed | None = None
    qguide: GuidanceOptions = GuidanceOptions()

    @property
    def include_usage(self) -> bool:
        """True if the stream should end with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


def chat_request_of(fields: Mapping[str, object]) -> ChatCompletionRequest:
    """A chat completion request with the fields of another dialect's request."""
    try:
        return ChatCompletionRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        said = f"{place}: {first['msg']}" if place else first["msg"]
        raise InvalidRequestError(said) from error


class OpenAIErrorDetail(BaseModel):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None = Field(description="the invalid field, if the error is about one")
    code: str
    request_id: str
    qguide: StoppedField = None


class OpenAIErrorBody(BaseModel):
    """Error response of this route."""

    error: OpenAIErrorDetail


def options_of(body: GuidanceOptions, headers: Mapping[str, str]) -> GuidanceOptions:
    """The body's options, overridden by X-QGuide-… headers."""
    given = {
        name.lower().removeprefix(_HEADER).replace("-", "_"): value
        for name, value in headers.items()
        if name.lower().startswith(_HEADER) and name.lower() not in _NO_OPTIONS
    }
    try:
        read = GuidanceOptions.model_validate_strings(given, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        option, options = str(first["loc"][0]), GuidanceOptions.model_fields
        about = f" (it is {given[option][:100]!r})" if option in options else f"; options are {', '.join(options)}"
        raise InvalidRequestError(
            f"the header X-QGuide-{option.replace('_', '-').title()}: {first['msg']}{about}"
        ) from error
    return body.model_copy(update={name: getattr(read, name) for name in read.model_fields_set})
