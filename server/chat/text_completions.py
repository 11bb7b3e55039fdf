"""Bodies of POST /v1/completions, and their translation to and from chat completions."""

import uuid
from collections.abc import Collection, Iterator, Sequence
from functools import reduce
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

from qguide.qnet.dialects.shapes import Json, pieces_of
from qguide.qnet.errors import InvalidRequestError, UnsupportedParameterError
from qguide.server.chat.answers import ChatGuidance, ChatUsage
from qguide.server.chat.schemas import (
    ChatCompletionRequest,
    ChatTurn,
    GuidanceOptions,
    StreamOptions,
    WholeRequest,
    chat_request_of,
)
from qguide.server.own_bodies.answers import Absent
from qguide.server.own_bodies.schemas import NOT_EMPTY, WHOLE, Integer, ListOf, Positive, Temperature
from qguide.server.q_models.served import ServedPolicy
from qguide.server.settings.allowed_parameters import chat_parameters

_OF_TEXTS: Final = ("echo", "logprobs", "suffix")  # parameters that a chat has nothing for
_UNGUIDED: Final = "where it is set, the upstream's own completions answer, unguided"
_Count = Annotated[int, Field(ge=0), WHOLE]
_PASSED_ON: Final = ("created", "model", "usage", "qguide", "system_fingerprint")


class CompletionRequest(WholeRequest):
    """OpenAI's request body; an upstream gets the parameters that callers may set."""

    prompt: str | ListOf[str] | ListOf[_Count] | ListOf[ListOf[_Count]] = Field(
        description="a text, which the policy reads as a user message, or several; or the tokens of one or several",
        json_schema_extra=NOT_EMPTY,
    )
    model: str | None = Field(default=None, description="the policy; null takes the default")
    n: Positive | None = Field(default=None, description="number of candidates to return, best first")
    best_of: Positive | None = Field(default=None, description="M, unless `qguide.num_candidates` says otherwise")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    max_tokens: _Count | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1), WHOLE] | None = None
    echo: bool | None = Field(default=None, description=_UNGUIDED)
    suffix: str | None = Field(default=None, description=_UNGUIDED)
    logprobs: Integer | None = Field(default=None, description=_UNGUIDED)
    qguide: GuidanceOptions = GuidanceOptions()

    @property
    def num_prompts(self) -> int:
        """Number of prompts; the tokens of one are no list of prompts."""
        lists = () if isinstance(self.prompt, str) else self.prompt
        return sum(not isinstance(prompt, int) for prompt in lists) or 1

    @property
    def texts(self) -> list[str]:
        """The prompts; none if they are tokens."""
        given = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        return [prompt for prompt in given if isinstance(prompt, str)]

    @property
    def needs_texts(self) -> str:
        """The field that only an upstream's own completions have; "" for none."""
        if self.prompt and not self.texts:
            return "prompt"
        needed = (self.echo, self.logprobs is not None, self.suffix)
        return next((name for name, is_so in zip(_OF_TEXTS, needed, strict=True) if is_so), "")

    @property
    def include_usage(self) -> bool:
        """True if the stream should end with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class TextChoice(BaseModel):
    """One of the best candidates, or a part of it."""

    index: int = Field(description="its rank, 0 is the best; n further ones for each prompt")
    text: str
    logprobs: dict[str, Any] | None = Field(description="as an upstream gave them, if asked for")
    finish_reason: str | None = Field(
        description="`stop`, `length` or the upstream's own; null in a part before the last"
    )
    qguide: ChatGuidance | Absent = Field(
        default=None, description="of several prompts: that of the choice's, in its first choice"
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


def to_chat_requests(body: CompletionRequest) -> list[ChatCompletionRequest]:
    """The chat completion requests for the same answers; each prompt is a user message."""
    if not body.texts:
        raise InvalidRequestError("prompt is empty; send at least one text")
    given = {"n": body.n, "temperature": body.temperature, "max_tokens": body.max_tokens, "seed": body.seed}
    turns = [ChatTurn(role="user", content=prompt) for prompt in body.texts]
    first = chat_request_of(body.parameters | given | {"messages": turns[:1]})
    return [first.model_copy(update={"messages": [turn]}) for turn in turns]


def text_request(body: CompletionRequest, policy: ServedPolicy, named: Collection[str]) -> Json:
    """The request to an upstream's own completions."""
    field = body.needs_texts
    if policy.upstream_model is None or policy.dialect != "chat" or body.stream:
        raise UnsupportedParameterError(
            f"{field} needs an upstream's own completions, whole: the policy {policy.name!r} answers "
            f"{'in a stream' if body.stream else 'chats'}; send texts without {', '.join(_OF_TEXTS)}, or name an "
            "upstream of the dialect 'chat' and do not stream",
            parameter=field,
        )
    passed, _ = chat_parameters(body.parameters, named, {})
    own = body.model_dump(
        include={"prompt", "n", "best_of", "temperature", "max_tokens", "seed", *_OF_TEXTS}, exclude_none=True
    )
    return {**passed, **own, "model": policy.upstream_model}


def joined(completions: Sequence[Json]) -> Json:
    """One completion of all prompts' completions."""
    if len(completions) == 1:
        return completions[0]
    choices: list[Json] = []
    for completion in completions:
        first, *others = completion["choices"]
        for choice in (first | {"qguide": completion["qguide"]}, *others):
            choices.append(choice | {"index": len(choices)})
    usage = reduce(_sum, [completion["usage"] for completion in completions])
    whole = completions[0] | {"choices": choices, "usage": usage}
    del whole["qguide"]
    return whole


def _sum(one: Json, other: Json) -> Json:
    """Sums of the numbers in two objects, and in the objects in them."""
    return {
        name: _sum(one.get(name, {}), other.get(name, {}))
        if isinstance(one.get(name, other.get(name)), dict)
        else one.get(name, 0) + other.get(name, 0)
        for name in {**one, **other}
    }


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


def parts_of(completion: Json, *, include_usage: bool) -> Iterator[Json]:
    """Split a finished completion into the parts of a stream."""
    more = ("choices", "usage", "qguide")
    head = {name: value for name, value in completion.items() if name not in more}
    last = len(completion["choices"]) - 1
    own = {"qguide": completion["qguide"]} if "qguide" in completion else {}
    for choice in completion["choices"]:
        bare = {name: value for name, value in choice.items() if name != "qguide"}
        for piece in pieces_of(choice["text"]):
            yield head | {"choices": [bare | {"text": piece, "finish_reason": None}]}
        yield head | {"choices": [choice | {"text": ""}]} | (own if choice["index"] == last else {})
    if include_usage:
        yield head | {"choices": [], "usage": completion["usage"]}
