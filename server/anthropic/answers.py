"""Response schemas of messages, whole and in events."""

from typing import Literal

from pydantic import BaseModel, Field

from qguide.server.chat.answers import ChatGuidance
from qguide.server.own_bodies.answers import Absent

StopReason = Literal["end_turn", "max_tokens", "tool_use", "stop_sequence", "refusal"]


class AnswerBlock(BaseModel):
    """A text, the upstream's thoughts or a call of a tool; which fields it has depends on its type."""

    type: Literal["text", "thinking", "tool_use"]
    text: str | Absent = None
    thinking: str | Absent = None
    signature: str | Absent = Field(
        default=None, description="of thoughts: names the upstream's field, to which they are sent back"
    )
    id: str | Absent = Field(default=None, description="of a call")
    name: str | Absent = Field(default=None, description="of the called tool")
    input: dict[str, object] | Absent = Field(
        default=None, description="a call's arguments; if they are not a JSON object, their text as `INVALID_JSON`"
    )


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


class MessageDelta(BaseModel):
    """New content of a block, or the message's end."""

    type: Literal["text_delta", "thinking_delta", "signature_delta", "input_json_delta"] | Absent = None
    text: str | Absent = None
    thinking: str | Absent = None
    signature: str | Absent = None
    partial_json: str | Absent = Field(default=None, description="of a call's arguments")
    stop_reason: StopReason | Absent = Field(default=None, description="of the message's end")
    stop_sequence: str | None = None


class MessageEvent(BaseModel):
    """One event of a streamed message; which fields it has depends on its type."""

    type: str = Field(
        description="`message_start`, `content_block_start`, `content_block_delta`, `content_block_stop`, "
        "`message_delta`, `message_stop`, or `ping` while candidates are drawn and scored"
    )
    message: AnthropicMessage | Absent = Field(default=None, description="of the start, without content")
    index: int | Absent = Field(default=None, description="of a block")
    content_block: AnswerBlock | Absent = Field(default=None, description="without content")
    delta: MessageDelta | Absent = None
    usage: MessageUsage | Absent = Field(default=None, description="of the message's end")
