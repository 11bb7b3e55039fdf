"""Response schemas of messages, whole and in events."""

from typing import Literal

from pydantic import BaseModel, Field, RootModel

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
    input: dict[str, object] = Field(
        description="the arguments; if they are not a JSON object, their text as `INVALID_JSON`"
    )


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


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
    """Anthropic's message with the best candidate as its content, and the guidance."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str = Field(description="name of the policy")
    content: list[AnswerBlock]
    stop_reason: StopReason | None = Field(description="null in a stream's first event")
    stop_sequence: str | None = Field(description="the stop sequence that ended the answer, if the upstream names it")
    usage: MessageUsage
    qguide: ChatGuidance


class MessageStart(BaseModel):
    """A message without content."""

    type: Literal["message_start"]
    message: AnthropicMessage


class ContentBlockStart(BaseModel):
    """A block without content."""

    type: Literal["content_block_start"]
    index: int
    content_block: AnswerBlock


class TextDelta(BaseModel):
    """New text."""

    type: Literal["text_delta"]
    text: str


class ThinkingDelta(BaseModel):
    """New thoughts."""

    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(BaseModel):
    """A thinking block's signature."""

    type: Literal["signature_delta"]
    signature: str


class InputJsonDelta(BaseModel):
    """The input of a tool_use block as JSON."""

    type: Literal["input_json_delta"]
    partial_json: str


class ContentBlockDelta(BaseModel):
    """New content of a block."""

    type: Literal["content_block_delta"]
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class ContentBlockStop(BaseModel):
    """End of a block."""

    type: Literal["content_block_stop"]
    index: int


class MessageEnd(BaseModel):
    """Reason for the message's end."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(BaseModel):
    """End of a message and its usage."""

    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessageUsage


class MessageStop(BaseModel):
    """End of a stream."""

    type: Literal["message_stop"]


class Ping(BaseModel):
    """A sign of life while candidates are drawn and scored."""

    type: Literal["ping"]


class MessageEvent(
    RootModel[
        Ping | MessageStart | ContentBlockStart | ContentBlockDelta | ContentBlockStop | MessageDelta | MessageStop
    ]
):
    """One event of a streamed message."""
