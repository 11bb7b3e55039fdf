"""Response schemas of the Responses API, whole and as events, for the OpenAPI document.

The responses themselves are plain JSON (see `output` and `events`). tests/e2e/test_openapi.py validates real responses
against these schemas.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field

from qguide.server.chat.answers import ChatGuidance
from qguide.server.own_bodies.answers import Absent

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputPart(BaseModel):
    """A part of an item's content."""

    type: Literal["output_text", "refusal", "reasoning_text"]
    text: str | Absent = Field(default=None, description="of a text")
    refusal: str | Absent = Field(default=None, description="of a refusal")
    annotations: list[dict[str, Any]] | Absent = Field(default=None, description="always empty")
    logprobs: list[dict[str, Any]] | Absent = Field(
        default=None, description="of the text's tokens; empty unless they were asked for"
    )


class OutputItem(BaseModel):
    """One item of the output; which fields it has depends on its type."""

    id: str
    type: Literal["message", "function_call", "custom_tool_call", "reasoning"]
    status: Status | Absent = Field(default=None, description="of all items but reasoning")
    role: Literal["assistant"] | Absent = Field(default=None, description="of a message")
    content: list[OutputPart] | Absent = Field(default=None, description="of a message or of reasoning")
    summary: list[dict[str, Any]] | Absent = Field(default=None, description="of reasoning")
    call_id: str | Absent = Field(default=None, description="of a call; its output has the same `call_id`")
    name: str | Absent = Field(default=None, description="of the called tool")
    namespace: str | Absent = Field(default=None, description="of the called tool, if it is in one")
    arguments: str | Absent = Field(default=None, description="of a function call")
    input: str | Absent = Field(default=None, description="of a custom tool's call")


class InputTokensDetails(BaseModel):
    """Details of the input's tokens."""

    cached_tokens: int = Field(description="tokens that an upstream had cached")


class OutputTokensDetails(BaseModel):
    """Details of the output's tokens."""

    reasoning_tokens: int = Field(description="as an upstream counted them, else 0")


class ResponseUsage(BaseModel):
    """Tokens of the policy, for all candidates together."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFailure(BaseModel):
    """The error of a failed response."""

    code: str
    message: str


class IncompleteDetails(BaseModel):
    """The reason why a response is incomplete."""

    reason: Literal["max_output_tokens", "content_filter"]


class ResponseObject(BaseModel):
    """OpenAI's response with the best candidate as its output, and the guidance."""

    id: str
    object: Literal["response"]
    created_at: int = Field(description="Unix time in seconds")
    completed_at: int | None = None
    status: Status
    background: bool
    error: ResponseFailure | None
    frequency_penalty: float
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, Any]
    model: str = Field(description="name of the policy")
    output: list[OutputItem]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str = Field(description="as an upstream gave it, else as the request has it, else `auto`")
    store: bool = Field(description="true if later requests can continue this response")
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None = Field(description="null before the end")
    qguide: ChatGuidance | Absent = Field(default=None, description="present at the end")


class ResponseEvent(BaseModel):
    """One event of a streamed response; which fields it has depends on its type."""

    type: str = Field(
        description="`response.created`, `response.in_progress`, `response.output_item.added`, "
        "`response.content_part.added`, `response.output_text.delta` and others as OpenAI has them; the last is "
        "`response.completed`, `response.incomplete` or `response.failed`"
    )
    sequence_number: int = Field(description="counted from 0")
    response: ResponseObject | Absent = Field(default=None, description="of the first and the last events")
    output_index: int | Absent = Field(default=None, description="of the item")
    item_id: str | Absent = None
    item: OutputItem | Absent = Field(default=None, description="of an item's first and last event")
    content_index: int | Absent = Field(default=None, description="of the part")
    part: OutputPart | Absent = Field(default=None, description="of a part's first and last event")
    delta: str | Absent = Field(default=None, description="new text of a part or a call")
    text: str | Absent = None
    refusal: str | Absent = None
    arguments: str | Absent = None
    input: str | Absent = None
    logprobs: list[dict[str, Any]] | Absent = Field(default=None, description="of a text's event")
    code: str | Absent = Field(default=None, description="of an `error`")
    message: str | Absent = Field(default=None, description="of an `error`")
    param: str | None = Field(default=None, description="of an `error`")
