"""Request and response bodies of POST /v1/completions, with the `qguide` extension."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from qguide.server.chat.answers import Absent, ChatGuidance, ChatUsage
from qguide.server.chat.schemas import GuidanceOptions, StreamOptions, WholeRequest
from qguide.server.messages.schemas import NOT_EMPTY, WHOLE, Integer, ListOf, Positive, Temperature


class CompletionRequest(WholeRequest):
    """OpenAI's request body; an upstream gets the parameters that callers may set."""

    prompt: str | ListOf[str] = Field(
        description="one text, which the policy reads as a user message",
        json_schema_extra=NOT_EMPTY,
    )
    model: str | None = Field(default=None, description="the policy; null takes the default")
    n: Positive | None = Field(
        default=None, description="number of candidates to return, best first"
    )
    best_of: Positive | None = Field(
        default=None, description="M, unless `qguide.num_candidates` says otherwise"
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    max_tokens: Positive | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1), WHOLE] | None = None
    echo: bool | None = Field(default=None, description="true is refused")
    suffix: str | None = Field(default=None, description="refused unless it is empty")
    logprobs: Integer | None = Field(default=None, description="refused unless it is 0")
    qguide: GuidanceOptions = GuidanceOptions()

    @property
    def include_usage(self) -> bool:
        """True if the stream should end with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class TextChoice(BaseModel):
    """One of the best candidates, or a part of it."""

    index: int = Field(description="its rank; 0 is the best")
    text: str
    logprobs: None
    finish_reason: str | None = Field(
        description="`stop`, `length` or the upstream's own; null in a part before the last"
    )


class TextCompletion(BaseModel):
    """OpenAI's completion with the best candidates as its choices, and the guidance.

    A part of a stream has the same fields. The last part with choices has the guidance.
    """

    id: str
    object: Literal["text_completion"]
    created: int = Field(description="Unix time in seconds")
    model: str = Field(description="name of the policy")
    choices: list[TextChoice]
    usage: ChatUsage | None = None
    system_fingerprint: str | Absent = Field(default=None, description="as an upstream gave it")
    qguide: ChatGuidance | Absent = None
