"""Request and error bodies of POST /v1/messages, with the `qguide` extension."""

from typing import Any, Literal

from pydantic import Field

from qguide.qnet.dialects import anthropic_blocks
from qguide.server.chat.schemas import GuidanceOptions, WholeRequest
from qguide.server.own_bodies.schemas import NOT_EMPTY, Integer, ListOf, Positive, Seed, StepOptions, Temperature, Whole


class Passage(anthropic_blocks.Passage, Whole):
    """A block of text within another."""


class Source(anthropic_blocks.Source, Whole):
    """Bytes, text or address of an image or a document."""

    type: str = Field(description="`base64`; `url` of an image; `text` or `content` of a document")
    content: str | ListOf[Passage] | None = Field(default=None, description="with type `content`")


class Part(Passage, anthropic_blocks.Part):
    """A block that can stand in a user's message, in `system` or in a tool's result."""

    type: str = Field(
        description="`text`, `image`, `document`, `search_result`, `tool_reference` or, in a result, `browser_state`"
    )
    source: Source | str | None = Field(default=None, description="a text in a search_result")
    title: str | None = Field(default=None, description="of a search_result")
    content: str | ListOf[Passage] | None = Field(default=None, description="of a search_result")
    tool_name: str | None = Field(default=None, description="the tool of a tool_reference")


class Block(Part, anthropic_blocks.Block):
    """A block of a message's content."""

    type: str = Field(
        description="`text`, `image`, `document`, `search_result`, `tool_use`, `tool_result`, `thinking` or "
        "`redacted_thinking`"
    )
    id: str | None = Field(default=None, description="of a tool_use")
    name: str | None = Field(default=None, description="the called tool")
    toolset_name: str | None = Field(default=None, description="the toolset that it is of")
    input: dict[str, Any] | None = Field(default=None, description="the called tool's arguments")
    tool_use_id: str | None = Field(default=None, description="the tool_use of a tool_result")
    content: str | ListOf[Part] | None = Field(  # type: ignore[assignment]  # it is only read
        default=None, description="of a tool_result or search_result"
    )
    is_error: bool | None = Field(
        default=None, description="true if the tool failed: its text then begins with `Error: `"
    )


class Turn(anthropic_blocks.Turn, Whole):
    """One message of a conversation."""

    content: str | ListOf[Block]


class AnthropicTool(Whole):
    """A tool that the caller runs, or a toolset of them, which has no name."""

    name: str = ""
    description: str | None = None
    input_schema: dict[str, Any] | None = Field(
        default=None, description="JSON schema; Anthropic's tools that the caller runs need none"
    )
    type: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = Field(default=None, description="true leaves it out until a tool_reference names it")
    configs: dict[str, Any] | None = Field(
        default=None, description="`enabled` and `defer_loading` of a toolset's tools, by name"
    )


class ToolChoice(Whole):
    """The tools that an answer may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(default=None, description="the tool, with type `tool`")
    disable_parallel_tool_use: bool | None = None


class Thinking(Whole):
    """Request for thinking blocks; the upstream decides how long it thinks."""

    type: str = Field(description="`disabled` leaves out the upstream's thoughts")


class OutputFormat(Whole):
    """A structured answer."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Whole):
    """Form of the answer."""

    format: OutputFormat | None = None
    effort: str | None = Field(default=None, description="without effect: the upstream decides")


class Metadata(Whole):
    """Data about the request."""

    user_id: str | None = None


class Prompt(WholeRequest):
    """Everything that the model reads."""

    messages: ListOf[Turn] = Field(json_schema_extra=NOT_EMPTY)
    model: str | None = Field(default=None, description="the policy; null takes the default")
    system: str | ListOf[Part] | None = None
    tools: ListOf[AnthropicTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None


class MessagesRequest(Prompt):
    """Anthropic's request body; an upstream gets the parameters that callers may set."""

    max_tokens: Positive = Field(description="most tokens of each candidate")
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: float | None = Field(default=None, allow_inf_nan=False)
    top_k: Integer | None = None
    stop_sequences: ListOf[str] | None = None
    seed: Seed | None = Field(default=None, description="OpenAI's; Anthropic has none")
    output_config: OutputConfig | None = None
    metadata: Metadata | None = None
    qguide: GuidanceOptions = GuidanceOptions()


class CountTokensRequest(Prompt):
    """A prompt whose tokens are counted; options other than `q_model` are ignored."""

    qguide: StepOptions = StepOptions()
