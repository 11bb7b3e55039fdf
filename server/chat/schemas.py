"""The body of POST /v1/chat/completions, and what `qguide` adds to it."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from qnet.errors import InvalidRequestError
from qnet.policies.openai_schema import text_of
from qnet.support.json_depth import MOST_LEVELS, exceeds_max_depth
from qnet.types import Message, Role, ToolCall
from server.messages.schemas import (
    AT_LEAST_ONE,
    NOT_EMPTY,
    WHOLE,
    ContentPart,
    Integer,
    Positive,
    StepOptions,
    Temperature,
)

_HEADER: Final = "x-qguide-"
_NO_OPTIONS: Final = ("x-qguide-timeout-s", "x-qguide-replica")
"""The deadline is read for every route; the replica is for the proxy that the request came by."""


class GuidanceOptions(StepOptions):
    """What OpenAI's body has no place for."""

    num_candidates: Integer | None = Field(
        default=None,
        description="M, how many candidates to draw; null takes the server's default",
        json_schema_extra=AT_LEAST_ONE,
    )
    temperature: Temperature | None = Field(
        default=None, description="of the candidates; goes before the body's `temperature`"
    )
    return_candidates: bool = Field(
        default=False, description="whether the answer shows all candidates"
    )


class _Whole(BaseModel):
    """What is not known here is kept and passed on."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


class ChatFunction(_Whole):
    """What a call calls."""

    name: str
    arguments: str = Field(description="JSON, as the model wrote it")


class ChatToolCall(_Whole):
    """One tool call of an assistant's turn."""

    id: str
    type: Literal["function"] = "function"
    function: ChatFunction

    def to_call(self) -> ToolCall:
        """The same call as `qnet` knows it."""
        return ToolCall(self.function.name, self.function.arguments, self.id)


class ChatTool(_Whole):
    """What a custom tool is given."""

    name: str
    input: str = Field(description="any text")


class ChatCustomCall(_Whole):
    """One call of a custom tool of an assistant's turn."""

    id: str
    type: Literal["custom"]
    custom: ChatTool

    def to_call(self) -> ToolCall:
        """The same call as `qnet` knows it."""
        return ToolCall(self.custom.name, self.custom.input, self.id, "custom")


class ChatTurn(_Whole):
    """One turn of a conversation; an upstream gets it as it is."""

    role: Role | Literal["function"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[ChatToolCall | ChatCustomCall] | None = None
    tool_call_id: str | None = None
    function_call: ChatFunction | None = Field(
        default=None, description="how calls were spelt before there were tools"
    )

    def to_message(self) -> Message:
        """The same turn as `qnet` knows it; a part that is no text is in its `wire` alone."""
        calls = [call.to_call() for call in self.tool_calls or ()]
        if self.function_call:
            calls.append(ToolCall(self.function_call.name, self.function_call.arguments))
        said = self.model_dump(exclude_unset=True)
        wire = {name: value for name, value in said.items() if value is not None}
        if "content" in said:
            wire["content"] = said["content"]
        role: Role = "tool" if self.role == "function" else self.role
        text = text_of(wire.get("content"))
        return Message(role, text, tuple(calls), self.tool_call_id or "", wire)


class StreamOptions(_Whole):
    """What a stream ends with."""

    include_usage: bool | None = None


class ChatCompletionRequest(_Whole):
    """OpenAI's body; parameters that are not known here are passed on to an upstream."""

    messages: list[ChatTurn] = Field(json_schema_extra=NOT_EMPTY)
    model: str | None = Field(default=None, description="a policy; null takes the default")
    n: Positive | None = Field(default=None, description="how many of the best to return")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1), WHOLE] | None = None
    qguide: GuidanceOptions = GuidanceOptions()

    @model_validator(mode="before")
    @classmethod
    def _is_flat(cls, body: object) -> object:
        """What is passed on is written again, deeper in the stack than it was read."""
        if exceeds_max_depth(body):
            raise PydanticCustomError(
                "too_deep",
                "lists and objects stand in each other more than {most} levels deep; send a "
                "flatter body",
                {"most": MOST_LEVELS},
            )
        return body

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def parameters(self) -> dict[str, Any]:
        """Those that are not known here, but for the ones left out."""
        given = self.model_extra or {}
        return {name: value for name, value in given.items() if value is not None}


class OpenAIErrorDetail(BaseModel):
    """What went wrong, in OpenAI's words."""

    message: str
    type: str
    param: str | None = Field(description="the field that is at fault, where it is one")
    code: str
    request_id: str


class OpenAIErrorBody(BaseModel):
    """Every answer of this route that is no completion."""

    error: OpenAIErrorDetail


def options_of(body: GuidanceOptions, headers: Mapping[str, str]) -> GuidanceOptions:
    """The body's options, with those of X-QGuide-… headers in their place.

    Raises:
        InvalidRequestError: a header that is no option, or of a value that it does not take.
    """
    given = {
        name.lower().removeprefix(_HEADER).replace("-", "_"): value
        for name, value in headers.items()
        if name.lower().startswith(_HEADER) and name.lower() not in _NO_OPTIONS
    }
    try:
        read = GuidanceOptions.model_validate_strings(given, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0])
        raise InvalidRequestError(
            f"the header X-QGuide-{option.replace('_', '-').title()}: {first['msg']}; options are "
            f"{', '.join(GuidanceOptions.model_fields)}"
        ) from error
    return body.model_copy(update=read.model_dump(exclude_unset=True))
