"""Response schemas of messages, whole and in events."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, RootModel

from qguide.server.anthropic.errors import AnthropicErrorBody
from qguide.server.chat.answers import ChatGuidance
from qguide.server.own_bodies.answers import Absent

StopReason = Literal["end_turn", "max_tokens", "tool_use", "stop_sequence", "refusal"]


class TextBlock(BaseModel):
    """A text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(BaseModel):
    """The upstream's thoughts."""

    type: Literal["thinking"]
    thinking: str
    signature: str = Field(description="names the upstream's field, to which they are sent back")


class ToolUseBlock(BaseModel):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    toolset_name: str | Absent = Field(default=None, description="the toolset that the tool is of")
    input: dict[str, object] = Field(
        description="the arguments; if they are not a JSON object, their text as `INVALID_JSON`"
    )


AnswerBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]


class MessageOutputDetails(BaseModel):
    """Details of the output's tokens."""

    thinking_tokens: int


class MessageUsage(BaseModel):
    """Tokens of the policy, for all candidates together."""

    input_tokens: int = Field(description="tokens of the prompt that were not cached")
    cache_creation_input_tokens: int = Field(description="tokens of the prompt that an upstream of this dialect cached")
    cache_read_input_tokens: int = Field(description="tokens of the prompt that an upstream had cached")
    output_tokens: int
    output_tokens_details: MessageOutputDetails | Absent = None


class AnthropicMessage(BaseModel):
    """Anthropic's message with the best candidate as its content, and the guidance.

    An upstream of this dialect answers with its own content, which may have Anthropic's other blocks and reasons, too.
    """

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str = Field(description="name of the policy")
    content: list[AnswerBlock]
    stop_reason: StopReason | None = Field(description="null in a stream's first event")
    stop_sequence: str | None = Field(description="the stop sequence that ended the answer, if the upstream names it")
    usage: MessageUsage
    qguide: ChatGuidance


class TextDelta(BaseModel):
    """More of a text."""

    type: Literal["text_delta"]
    text: str


class ThinkingDelta(BaseModel):
    """More of the thoughts."""

    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(BaseModel):
    """The signature of thoughts, behind them."""

    type: Literal["signature_delta"]
    signature: str


class InputDelta(BaseModel):
    """More of a call's arguments."""

    type: Literal["input_json_delta"]
    partial_json: str


class MessageStart(BaseModel):
    """The message without its content; an SDK keeps its `qguide`."""

    type: Literal["message_start"]
    message: AnthropicMessage


class BlockStart(BaseModel):
    """A block without its content."""

    type: Literal["content_block_start"]
    index: int
    content_block: AnswerBlock


class BlockDelta(BaseModel):
    """New content of a block."""

    type: Literal["content_block_delta"]
    index: int
    delta: Annotated[TextDelta | ThinkingDelta | SignatureDelta | InputDelta, Field(discriminator="type")]


class BlockStop(BaseModel):
    """The end of a block."""

    type: Literal["content_block_stop"]
    index: int


class MessageEnd(BaseModel):
    """The reason why a message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(BaseModel):
    """The message's end, and the usage of all."""

    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessageUsage


class MessageStop(BaseModel):
    """The last event."""

    type: Literal["message_stop"]


class Ping(BaseModel):
    """A sign of life while candidates are drawn and scored."""

    type: Literal["ping"]


class MessageEvent(
    RootModel[
        Annotated[
            MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping | AnthropicErrorBody,
            Field(discriminator="type"),
        ]
    ]
):
    """One event of a streamed message, by its type; an `error` is the last one.

    An upstream of this dialect answers with its own content, which may have Anthropic's other blocks, too.
    """
