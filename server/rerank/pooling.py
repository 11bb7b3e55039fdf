"""Bodies of vLLM's POST /classify and /pooling, which ask for the reward of a conversation.

The conversation's last assistant message is the action whose Q is read. A text in place of messages is refused: nothing
in it says where the history ends and the action begins.
"""

import uuid
from collections.abc import Sequence
from time import time
from typing import Final, Literal, Self

from pydantic import AliasChoices, Field, model_validator

from qguide.qnet.errors import MalformedHistoryError
from qguide.qnet.types import ScoreResult
from qguide.server.own_bodies.schemas import NOT_EMPTY, CandidateMessage, ChatMessage, EpisodeId, ListOf, QModelName
from qguide.server.rerank.schemas import CachedTokens, PairScoreUsage, RerankBody
from qguide.server.rerank.translation import relevance, tokens_of

_LABEL: Final = "LABEL_0"  # transformers' name for the label of a classifier that has one


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


class _Response(RerankBody):
    object: Literal["list"] = "list"
    created: int = Field(default_factory=lambda: int(time()))
    model: str
    usage: PairScoreUsage


class ClassifyResponse(_Response):
    """vLLM's response to `POST /classify`; `model` is the `name@version` that scored."""

    id: str = Field(default_factory=lambda: f"classify-{uuid.uuid4().hex}")
    data: list[Classification]

    @classmethod
    def of(cls, body: PoolingRequest, q_model: str, scored: ScoreResult) -> Self:
        """The score as probability of the only label."""
        data = [Classification(probs=[_score(body, scored)])]
        return cls(model=q_model, data=data, usage=_usage(scored))


class PoolingResponse(_Response):
    """vLLM's response to `POST /pooling`; `model` is the `name@version` that scored."""

    id: str = Field(default_factory=lambda: f"pool-{uuid.uuid4().hex}")
    data: list[Pooled]

    @classmethod
    def of(cls, body: PoolingRequest, q_model: str, scored: ScoreResult) -> Self:
        """The score as a vector."""
        data = [Pooled(data=[_score(body, scored)])]
        return cls(model=q_model, data=data, usage=_usage(scored))


def _score(body: PoolingRequest, scored: ScoreResult) -> float:
    [q] = scored.q_values
    return q if body.use_activation is False else relevance(q)


def _usage(scored: ScoreResult) -> PairScoreUsage:
    return PairScoreUsage(
        prompt_tokens=tokens_of(scored),
        total_tokens=tokens_of(scored),
        prompt_tokens_details=CachedTokens(cached_tokens=scored.cached_tokens),
    )
