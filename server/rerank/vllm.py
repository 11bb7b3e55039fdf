"""vLLM's bodies of POST /score, /classify and /pooling, its semantic router's of /verify, and their answers.

/classify and /pooling ask for the reward of a conversation: its last assistant message is the action whose Q is read.
A text in place of messages is refused: nothing in it says where the history ends and the action begins. /score
returns the raw Q unless the logistic function of it is asked for.
"""

import uuid
from collections.abc import Sequence
from time import time
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AliasChoices, ConfigDict, Discriminator, Field, Tag, model_validator

from qguide.qnet.errors import MalformedHistoryError
from qguide.qnet.types import ScoreResult
from qguide.server.own_bodies.schemas import (
    NOT_EMPTY,
    CandidateMessage,
    ChatMessage,
    EpisodeArm,
    EpisodeId,
    ListOf,
    QModelName,
    ScoreRequestBody,
)
from qguide.server.rerank.jina_cohere import Messages, RerankBody, exactly_one_history, relevance, tokens_of

_OURS: Final = "(ours)"
_VLLMS: Final = "(vLLM's)"  # tags of the schemas that one path accepts; they are not fields
_LABEL: Final = "LABEL_0"  # transformers' name for the label of a classifier that has one
_DOCUMENTS: Final = ("documents", "items", "text_2", "data_2")
_QUERIES: Final = ("queries", "text_1", "data_1")


def _add_field_aliases(schema: dict[str, Any]) -> None:
    properties = schema["properties"]
    for first, *others in (_DOCUMENTS, _QUERIES):
        properties |= {name: properties[first] | {"title": name} for name in others}
    del schema["required"]
    schema |= exactly_one_history(_QUERIES, ["string", "array"])
    schema["anyOf"] = [{"required": [name]} for name in _DOCUMENTS]


class PairScoreRequest(RerankBody, json_schema_extra=_add_field_aliases):
    """vLLM's `POST /score`: one query for all documents, or one query per document."""

    model: QModelName = None
    queries: str | ListOf[str] | None = Field(
        default=None,
        validation_alias=AliasChoices(*_QUERIES),
        description="the history as a single user message, or one for each document; also `text_1` or `data_1`",
        json_schema_extra=NOT_EMPTY,
    )
    messages: Messages = None
    documents: str | ListOf[str] = Field(
        validation_alias=AliasChoices(*_DOCUMENTS),
        description="the candidates; also `items`, `text_2` or `data_2`",
        json_schema_extra=NOT_EMPTY,
    )
    use_activation: bool | None = Field(
        default=None, description="true maps Q to [0, 1], as rerankers do; otherwise it is raw"
    )
    episode_id: EpisodeArm = None

    @model_validator(mode="after")
    def _one_history(self) -> Self:
        if (self.queries is None) == (self.messages is None):
            raise ValueError("give either queries (or text_1 or data_1) or messages, not both")
        return self


def _shape(body: object) -> str:
    """Tag of the schema that a `POST /v1/score` body has: vLLM's has documents, ours does not."""
    theirs = isinstance(body, PairScoreRequest) or (isinstance(body, dict) and not body.keys().isdisjoint(_DOCUMENTS))
    return _VLLMS if theirs else _OURS


EitherScoreRequest = Annotated[
    Annotated[ScoreRequestBody, Tag(_OURS)] | Annotated[PairScoreRequest, Tag(_VLLMS)], Discriminator(_shape)
]


class PairScore(RerankBody):
    """Raw Q of one pair, or in [0, 1] if `use_activation` asked for it."""

    index: int
    object: Literal["score"] = "score"
    score: float


class CachedTokens(RerankBody):
    """Cached tokens of the prompt."""

    cached_tokens: int


class PairScoreUsage(RerankBody):
    """Tokens of histories and documents, in OpenAI's format."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: CachedTokens


class _ListResponse(RerankBody):
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)  # all of it is always there

    object: Literal["list"] = "list"
    created: int = Field(default_factory=lambda: int(time()))
    model: str
    usage: PairScoreUsage


class PairScoreResponse(_ListResponse):
    """vLLM's response; `model` is the `name@version` that scored."""

    id: str = Field(default_factory=lambda: f"score-{uuid.uuid4().hex}")
    data: list[PairScore]


def pair_response(
    q_values: Sequence[float], q_model: str, scored: Sequence[ScoreResult], *, activation: bool
) -> PairScoreResponse:
    """vLLM's response: the Q of each pair, in the request's order."""
    data = [PairScore(index=i, score=relevance(q) if activation else q) for i, q in enumerate(q_values)]
    return PairScoreResponse(model=q_model, data=data, usage=_usage(scored))


def _usage(scored: Sequence[ScoreResult]) -> PairScoreUsage:
    tokens, cached = sum(map(tokens_of, scored)), sum(one.cached_tokens for one in scored)
    return PairScoreUsage(
        prompt_tokens=tokens, total_tokens=tokens, prompt_tokens_details=CachedTokens(cached_tokens=cached)
    )


class PoolingRequest(RerankBody):
    """vLLM's request, with a conversation."""

    model: QModelName = None
    messages: ListOf[ChatMessage] = Field(
        description="the history and the action, which is the last assistant message; a Q model that reads after the "
        "observation has the observation last",
        json_schema_extra=NOT_EMPTY,
    )
    use_activation: bool | None = Field(
        default=None,
        validation_alias=AliasChoices("use_activation", "activation"),
        description="false returns the raw Q, otherwise 1 / (1 + exp(-Q)); also `activation`",
    )
    episode_id: EpisodeId = None

    @model_validator(mode="before")
    @classmethod
    def _is_a_conversation(cls, body: object) -> object:
        if isinstance(body, dict) and "messages" not in body and "input" in body:
            raise ValueError("input is text, and a Q model reads a conversation; send messages, the action last")
        return body

    def split(self) -> tuple[Sequence[ChatMessage], CandidateMessage]:
        """The history and the action with its observation."""
        places = [i for i, message in enumerate(self.messages) if message.role == "assistant"]
        if not places:
            raise MalformedHistoryError("no message has the role 'assistant'; end with the action to score")
        at = places[-1]
        observation = self.messages[at + 1 :]
        action = self.messages[at].model_dump(exclude_unset=True)
        return self.messages[:at], CandidateMessage(**action, observation=observation or None)


class Classification(RerankBody):
    """Q of the action as the score of the only label."""

    index: int = 0
    label: str = _LABEL
    probs: list[float]
    num_classes: int = 1


class Pooled(RerankBody):
    """Q of the action as a pooled vector of one number."""

    index: int = 0
    object: Literal["pooling"] = "pooling"
    data: list[float]


class ClassifyResponse(_ListResponse):
    """vLLM's response to `POST /classify`; `model` is the `name@version` that scored."""

    id: str = Field(default_factory=lambda: f"classify-{uuid.uuid4().hex}")
    data: list[Classification]

    @classmethod
    def of(cls, body: PoolingRequest, q_model: str, scored: ScoreResult) -> Self:
        """The score as probability of the only label."""
        data = [Classification(probs=[_score(body, scored)])]
        return cls(model=q_model, data=data, usage=_usage([scored]))


class PoolingResponse(_ListResponse):
    """vLLM's response to `POST /pooling`; `model` is the `name@version` that scored."""

    id: str = Field(default_factory=lambda: f"pool-{uuid.uuid4().hex}")
    data: list[Pooled]

    @classmethod
    def of(cls, body: PoolingRequest, q_model: str, scored: ScoreResult) -> Self:
        """The score as a vector."""
        data = [Pooled(data=[_score(body, scored)])]
        return cls(model=q_model, data=data, usage=_usage([scored]))


def _score(body: PoolingRequest, scored: ScoreResult) -> float:
    [q] = scored.q_values
    return q if body.use_activation is False else relevance(q)


class VerifyRequest(RerankBody):
    """Question of vLLM's semantic router to a verifier before it takes a small model's answer."""

    model: QModelName = None
    question: str = Field(description="the newest user message")
    answer: str = Field(description="what the small model answers")
    context: str = Field(default="", description="read before the question")
    threshold: float = Field(default=0.7, ge=0, le=1, description="below it, escalate")
    episode_id: EpisodeId = None


class VerifyResponse(RerankBody):
    """The verdict: a larger model is asked if the confidence is below the threshold."""

    confidence: float = Field(
        ge=0, le=1, description="Q, cut to 0 to 1, no logistic function; 0 outside the Q model's domain"
    )
    should_escalate: bool
    threshold: float
    out_of_domain: bool | None = Field(description="ours: null if the Q model has no domain")
    q_value: float = Field(description="ours: the raw Q")
    model: str = Field(description="ours: the `name@version` that scored")
