"""Response schemas of Gemini's routes, for the OpenAPI document."""

from typing import Literal

from pydantic import BaseModel, Field
from pydantic.alias_generators import to_camel

from qguide.server.chat.answers import ChatGuidance
from qguide.server.chat.token_count import TokenSource
from qguide.server.own_bodies.answers import Absent


class _Answer(BaseModel, alias_generator=to_camel, populate_by_name=True):
    """Its fields are in camel case."""


class AnsweredCall(BaseModel):
    """A call of a function that the caller runs."""

    id: str
    name: str
    args: dict[str, object] = Field(
        description="the arguments; if they are not a JSON object, their text as `INVALID_JSON`"
    )


class AnsweredPart(_Answer):
    """A text, a thought or a call."""

    text: str | Absent = None
    thought: bool | Absent = None
    thought_signature: str | Absent = Field(
        default=None, description="names the upstream's field, to which the thought is sent back"
    )
    function_call: AnsweredCall | Absent = None


class AnsweredContent(BaseModel):
    """The model's turn."""

    role: Literal["model"]
    parts: list[AnsweredPart]


class GeminiCandidate(_Answer):
    """The best candidate."""

    content: AnsweredContent
    finish_reason: Literal["STOP", "MAX_TOKENS", "SAFETY"] | Absent = None
    index: int


class GeminiUsage(_Answer):
    """Tokens of the policy, for all candidates together."""

    prompt_token_count: int
    cached_content_token_count: int
    candidates_token_count: int
    thoughts_token_count: int
    total_token_count: int


class GeneratedContent(_Answer):
    """Gemini's answer with the best candidate, and the guidance; a stream has it in pieces."""

    candidates: list[GeminiCandidate]
    usage_metadata: GeminiUsage | Absent = None
    model_version: str = Field(description="name of the policy")
    response_id: str
    qguide: ChatGuidance | Absent = None


class CountedContent(_Answer):
    """Number of tokens of a prompt."""

    total_tokens: int
    qguide: TokenSource


class GeminiModel(_Answer):
    """A policy as Gemini lists its models."""

    name: str = Field(description="`models/` and the policy's name")
    version: str
    display_name: str
    description: str
    supported_generation_methods: list[str]
    input_token_limit: int | None = None


class GeminiModels(BaseModel):
    """The policies."""

    models: list[GeminiModel]
