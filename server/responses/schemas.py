"""Request body of POST /v1/responses, with the `qguide` extension, and its items as JSON."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from qguide.qnet.dialects import responses_requests
from qguide.qnet.dialects.responses_answers import OWN_CALLS
from qguide.qnet.dialects.shapes import Json
from qguide.server.chat.schemas import GuidanceOptions, WholeRequest
from qguide.server.http.long_bodies import LONG_BYTES
from qguide.server.own_bodies.schemas import NOT_EMPTY, WHOLE, ListOf, Positive, Temperature, Whole

_OF_RESPONSES_ONLY: Final = frozenset(
    ("access_programs", "background_options", "client_metadata", "image", "prompt_cache_options", "stream_options")
)
"""Parameters of the Responses API that chat completions do not have, and that an answer is valid without."""
BYTES_PER_ITEM: Final = 128
"""The least that a stored item takes."""
_PREFIXES: Final = {"function_call": "fc", "reasoning": "rs", "custom_tool_call": "ctc"}

Penalty = Annotated[float | None, Field(allow_inf_nan=False)]


class ItemPart(responses_requests.ItemPart, Whole):
    """A part of an item's content or output."""

    type: str = Field(
        description="`input_text`, `output_text`, `input_image`, `input_file`, `refusal`, or `reasoning_text` in a "
        "reasoning item"
    )


class InputItem(responses_requests.InputItem, Whole):
    """One item of the input; which fields it needs depends on its type."""

    type: str | None = Field(
        default=None,
        description="`message` (also if it is missing), `function_call`, `function_call_output`, `custom_tool_call`, "
        "`reasoning`, the call of a `shell`, `local_shell`, `apply_patch` or `computer`, or with `_output` the result "
        "of a call",
    )
    role: Literal["user", "assistant", "system", "developer"] | None = Field(default=None, description="of a message")
    content: str | ListOf[ItemPart] | None = Field(default=None, description="of a message or of a reasoning item")
    call_id: str | None = Field(default=None, description="of a call and of its output")
    name: str | None = Field(default=None, description="of the called tool")
    namespace: str | None = Field(default=None, description="of the called tool, if it is in one")
    arguments: str | None = Field(default=None, description="of a function call: JSON, as the model wrote it")
    input: str | None = Field(default=None, description="of a custom tool's call: any text")
    output: str | ListOf[ItemPart] | ListOf[dict[str, Any]] | dict[str, Any] | None = Field(
        default=None, description="of a tool; of a shell what each command wrote, of a computer its screenshot"
    )


class CallersTool(Whole):
    """A tool that the policy may call and the caller runs."""

    type: str = Field(description=f"{', '.join(('function', 'custom', *OWN_CALLS))}; others are refused")
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="JSON schema of a function's arguments")
    strict: bool | None = None
    format: dict[str, Any] | None = Field(default=None, description="of a custom tool's input: text or a grammar")


class Tool(CallersTool):
    """A tool that the policy may call, or a namespace of them."""

    type: str = Field(description="as of a tool, or `namespace`")
    tools: ListOf[CallersTool] | None = Field(default=None, description="of a namespace")


class TextFormat(Whole):
    """Format of the text: plain, or JSON."""

    type: str = Field(description="`text`, `json_object` or `json_schema`")


class TextOptions(Whole):
    """OpenAI's `text`."""

    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(Whole):
    """OpenAI's `reasoning`."""

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(WholeRequest):
    """OpenAI's request body; an upstream gets the parameters that callers may set."""

    input: str | ListOf[InputItem] = Field(
        description="the task as a text, or the history as items", json_schema_extra=NOT_EMPTY
    )
    model: str | None = Field(default=None, description="the policy; null takes the default")
    instructions: str | None = Field(default=None, description="placed before the input as a system message")
    tools: ListOf[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: Positive | None = None
    temperature: Temperature | None = None
    top_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    include: ListOf[str] | None = Field(
        default=None, description="`message.output_text.logprobs` is read; others have no effect"
    )
    metadata: dict[str, Any] | None = Field(default=None, description="repeated in the answer; upstreams do not get it")
    max_tool_calls: Positive | None = Field(
        default=None, description="of tools that a server runs; for upstreams of this dialect"
    )
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    stream: bool | None = None
    generate: bool | None = Field(
        default=None, description="false: nothing is drawn; the input is kept for requests that continue it"
    )
    store: bool | None = Field(
        default=None, description="false: the response is not stored, so that nothing continues it"
    )
    truncation: str | None = Field(default=None, description="nothing is truncated, so the answer says `disabled`")
    previous_response_id: str | None = Field(
        default=None, description="the stored response that the input continues; `ID.N` is its candidate N"
    )
    conversation: str | dict[str, Any] | None = Field(
        default=None, description="the conversation, or its id, that the input continues"
    )
    background: bool | None = Field(
        default=None, description="true: the response is made without its client, and is fetched by its id"
    )
    prompt: dict[str, Any] | None = Field(default=None, description="refused")
    qguide: GuidanceOptions = GuidanceOptions()

    @model_validator(mode="before")
    @classmethod
    def _names_its_prompt(cls, body: object) -> object:
        """Let a stored prompt be refused by name: it stands in place of the input."""
        return {"input": "", **body} if isinstance(body, dict) and body.get("prompt") else body

    @property
    def wants_logprobs(self) -> bool:
        """True if the answer should have the log-probabilities of its tokens."""
        return bool(self.top_logprobs) or "message.output_text.logprobs" in (self.include or ())

    @property
    def parameters(self) -> dict[str, Any]:
        """Unknown parameters that chat completions may have."""
        given = super().parameters
        return {name: value for name, value in given.items() if name not in _OF_RESPONSES_ONLY}


@dataclass(frozen=True, slots=True)
class Continued:
    """A request with all of its items."""

    body: ResponsesRequest
    own: Sequence[InputItem | Json]  # items that the request brings itself
    size: int = 0  # about so many bytes of them
    # responses before it, the first first; as `RESPONSE_ID` or `RESPONSE_ID.N`
    chain: list[str] = field(default_factory=list)
    conversation: str = ""

    @property
    def is_long(self) -> bool:
        """True if translating it keeps the event loop for too long."""
        items = 0 if isinstance(self.body.input, str) else len(self.body.input)
        return self.size + BYTES_PER_ITEM * items > LONG_BYTES


def said(text: str) -> Json:
    """A user's message."""
    return {"type": "message", "role": "user", "content": text}


def kind_of(item: InputItem | Json) -> str | None:
    """The type of an item."""
    return item.get("type") if isinstance(item, dict) else item.type


def id_of(item: InputItem | Json) -> str:
    """The id of an item, "" for none."""
    given = item if isinstance(item, dict) else item.model_extra or {}
    return str(given.get("id", ""))


def dumped(item: InputItem | Json) -> Json:
    """The item as it came."""
    return item if isinstance(item, dict) else item.model_dump(exclude_unset=True)


def as_listed(item: Mapping[str, Any]) -> Json:
    """The item with its type, an id and its text as a part, as OpenAI lists it."""
    kind = item.get("type") or "message"
    content = item.get("content")
    if isinstance(content, str) and kind == "message":
        text = "output_text" if item.get("role") == "assistant" else "input_text"
        content = [{"type": text, "text": content}]
    given = {name: value for name, value in item.items() if value is not None} | {"type": kind}
    if content is not None:
        given["content"] = content
    return {"id": f"{_PREFIXES.get(kind, 'msg')}_{uuid.uuid4().hex}"} | given
