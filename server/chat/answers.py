"""Response schemas of a chat completion, whole and in chunks.

The responses themselves are plain JSON (see `translation`), because an upstream's own fields are passed through. The
clients' types are generated from these schemas, and tests/e2e/test_openapi.py validates real responses against them.
"""

from typing import Literal

from pydantic import BaseModel, Field

from qguide.server.own_bodies.answers import (
    JUDGE_REASON_TEXT,
    POSTERIOR_TEXT,
    PRIOR_TEXT,
    VERDICTS_TEXT,
    Absent,
    ScoreUsage,
    StepAnswer,
)
from qguide.server.own_bodies.schemas import CustomCallBody, ToolCallBody


class ChatReply(BaseModel):
    """The assistant's reply: a text, tool calls or both."""

    role: Literal["assistant"]
    content: str | None = Field(description="null beside tool calls")
    refusal: str | None = None
    tool_calls: list[ToolCallBody | CustomCallBody] | Absent = None


class ChatChoice(BaseModel):
    """One of the best candidates."""

    index: int = Field(description="its rank; 0 is the best")
    message: ChatReply
    logprobs: dict[str, object] | None
    finish_reason: str = Field(description="`stop`, `length`, `tool_calls` or the upstream's own")


class PromptTokensDetails(BaseModel):
    """Details of the prompt's tokens."""

    cached_tokens: int = Field(description="tokens that an upstream had cached")
    cache_write_tokens: int | Absent = Field(
        default=None, description="tokens that it put into its cache, if it says so"
    )


class ChatUsage(BaseModel):
    """Tokens of the policy, for all candidates together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: dict[str, int] | Absent = Field(
        default=None, description="as an upstream gave them, for example `reasoning_tokens`"
    )


class ParaphraseUsage(BaseModel):
    """Tokens spent on paraphrases of the task."""

    prompt_tokens: int
    completion_tokens: int


class SampleUsage(ParaphraseUsage):
    """Tokens spent on drawing the candidates."""

    cached_tokens: int = Field(description="tokens of the prompt that were cached")


class StageUsage(BaseModel):
    """Tokens of each stage."""

    paraphrase: ParaphraseUsage
    sample: SampleUsage
    threshold: ParaphraseUsage = Field(description="of actions below the operator's threshold; included in `sample`")
    score: ScoreUsage


class ChatCandidate(BaseModel):
    """A candidate and its Q."""

    message: ChatReply
    q_value: float | None
    prior: float
    posterior: float | None
    finish_reason: str
    policy: str | Absent = Field(default=None, description="that drew it; present if several policies drew")
    verdicts: dict[str, float] | Absent = Field(default=None, description=VERDICTS_TEXT)
    judge_reason: str | Absent = Field(default=None, description=JUDGE_REASON_TEXT)


class ChatGuidance(StepAnswer):
    """The chosen candidate, the reason for it and what it cost."""

    returned: list[int] = Field(description="indices of the returned candidates, the best first")
    q_values: list[float] | None = Field(description="Q of every candidate; null if no Q was available")
    prior: list[float] = Field(description=f"of every candidate, {PRIOR_TEXT}")
    posterior: list[float] | None = Field(
        description=f"of every candidate, {POSTERIOR_TEXT}; null if it was not the reason"
    )
    num_candidates: int = Field(description="number of candidates drawn")
    distinct_candidates: int = Field(description="number of different candidates")
    usage: StageUsage
    episode_id: str | Absent = Field(default=None, description="present if the request belongs to one")
    candidates: list[ChatCandidate] | Absent = Field(
        default=None, description="all candidates; present if `return_candidates` was set"
    )


class ChatCompletion(BaseModel):
    """OpenAI's chat completion with the best candidates as its choices, and the guidance."""

    id: str
    object: Literal["chat.completion"]
    created: int = Field(description="Unix time in seconds")
    model: str = Field(description="name of the policy")
    choices: list[ChatChoice]
    usage: ChatUsage
    system_fingerprint: str | Absent = Field(default=None, description="as an upstream gave it")
    qguide: ChatGuidance


class FunctionDelta(BaseModel):
    """New text of a function call."""

    name: str | Absent = None
    arguments: str


class CustomDelta(BaseModel):
    """A custom tool's name and its whole input."""

    name: str
    input: str


class ToolCallDelta(BaseModel):
    """New part of a tool call; parts with the same `index` belong to one call."""

    index: int
    id: str | Absent = None
    type: Literal["function", "custom"] | Absent = None
    function: FunctionDelta | Absent = None
    custom: CustomDelta | Absent = None


class ChatDelta(BaseModel):
    """New part of a reply."""

    role: Literal["assistant"] | Absent = None
    content: str | None = None
    refusal: str | Absent = None
    tool_calls: list[ToolCallDelta] | Absent = None


class ChatChunkChoice(BaseModel):
    """New part of one choice."""

    index: int
    delta: ChatDelta
    logprobs: dict[str, object] | None
    finish_reason: str | None


class ChatChunk(BaseModel):
    """One part of a streamed completion.

    The last chunk with choices carries the guidance; with `include_usage` one more, without choices, carries the usage.
    """

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: ChatUsage | None = None
    system_fingerprint: str | Absent = None
    qguide: ChatGuidance | Absent = None
