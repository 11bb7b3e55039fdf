"""Bodies of POST /v1/completions, and their translation to and from chat completions.

Pure but for ids.
"""

import uuid
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from qguide.qnet.dialects.shapes import Json, pieces_of
from qguide.qnet.errors import InvalidRequestError, UnsupportedParameterError
from qguide.server.chat.answers import Absent, ChatGuidance, ChatUsage, ChunkWriter
from qguide.server.chat.schemas import (
    ChatCompletionRequest,
    GuidanceOptions,
    StreamOptions,
    WholeRequest,
    chat_request_of,
)
from qguide.server.own_bodies.schemas import (
    NOT_EMPTY,
    WHOLE,
    Integer,
    ListOf,
    Positive,
    Temperature,
)

_REFUSED: Final = {
    "echo": "put the prompt before the text yourself",
    "suffix": "say in the prompt what has to follow",
    "logprobs": "send a chat completion with logprobs",
}
"""Parameters that a chat has nothing for, and the remedy."""
_PASSED_ON: Final = ("created", "model", "usage", "qguide", "system_fingerprint")


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


def to_chat_request(body: CompletionRequest) -> ChatCompletionRequest:
    """The chat completion request that asks for the same answer; the prompt is its user message."""
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if len(prompts) != 1:
        raise InvalidRequestError(f"prompt has {len(prompts)} texts; send one in each request")
    for name, remedy in _REFUSED.items():
        if getattr(body, name):
            raise UnsupportedParameterError(
                f"{name} is not supported, because policies answer chats; {remedy}", parameter=name
            )
    return chat_request_of(
        body.parameters
        | {
            "messages": [{"role": "user", "content": prompts[0]}],
            "n": body.n,
            "temperature": body.temperature,
            "max_tokens": body.max_tokens,
            "seed": body.seed,
        }
    )


def with_best_of(options: GuidanceOptions, best_of: int | None) -> GuidanceOptions:
    """The options; M is OpenAI's `best_of` if nothing else says it."""
    if best_of is None or options.num_candidates is not None:
        return options
    return options.model_copy(update={"num_candidates": best_of})


def text_completion_of(completion: Json) -> Json:
    """The completion that says the same as a chat completion."""
    kept = {name: completion[name] for name in _PASSED_ON if name in completion}
    choices = [
        {
            "index": choice["index"],
            "text": choice["message"].get("content") or "",
            "logprobs": None,
            "finish_reason": choice["finish_reason"],
        }
        for choice in completion["choices"]
    ]
    own = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "choices": choices}
    return kept | own


class TextWriter(ChunkWriter):
    """Heartbeats, then the texts in parts; implements `EventWriter`."""

    def parts(self, answer: Json) -> Iterator[Json]:
        """The parts of a completion."""
        return parts_of(answer, include_usage=self._include_usage)


def parts_of(completion: Json, *, include_usage: bool) -> Iterator[Json]:
    """Split a finished completion into the parts of a stream."""
    more = ("choices", "usage", "qguide")
    head = {name: value for name, value in completion.items() if name not in more}
    last = len(completion["choices"]) - 1
    for choice in completion["choices"]:
        for piece in pieces_of(choice["text"]):
            yield head | {"choices": [choice | {"text": piece, "finish_reason": None}]}
        own = {"qguide": completion["qguide"]} if choice["index"] == last else {}
        yield head | {"choices": [choice | {"text": ""}]} | own
    if include_usage:
        yield head | {"choices": [], "usage": completion["usage"]}
