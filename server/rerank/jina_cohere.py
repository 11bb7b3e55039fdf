"""Jina's and Cohere's rerank APIs: bodies, and their answers from Q-values.

The query is the user's message, the documents are the agent's possible answers. Rerankers return scores in [0, 1],
but Q can be any number, so `relevance_score` is the logistic function of Q. Only its order has a meaning: a Q model
is trained on returns, not on relevance, and there is no softmax over the documents. The raw Q is returned beside it.

The clients of these APIs keep adding parameters, so unknown ones are ignored instead of refused. Fields that we added
are marked "ours"; other clients ignore them.
"""

import json
import math
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qguide.qnet.errors import InvalidCandidatesError
from qguide.qnet.types import ScoreResult
from qguide.server.own_bodies.schemas import NOT_EMPTY, ChatMessage, EpisodeId, Integer, ListOf, Positive, QModelName

TopN = Annotated[Positive | None, Field(description="number of documents to return, best first; null returns all")]
Messages = Annotated[
    ListOf[ChatMessage] | None,
    Field(description="ours: the whole history, in place of the query", json_schema_extra=NOT_EMPTY),
]
RelevanceScore = Annotated[
    float, Field(ge=0, le=1, description="1 / (1 + exp(-q_value)): a ranking, not a probability")
]
NOT_CUT: Final = "max_tokens_per_doc was ignored: documents are actions and are never truncated"


class RerankBody(BaseModel, frozen=True, extra="ignore", strict=True, populate_by_name=True):
    """Base of foreign bodies, whose unknown fields are ignored."""


def messages_of(query: str | None, messages: Sequence[ChatMessage] | None) -> Sequence[ChatMessage]:
    """The history's messages: `messages`, or the query as a single user message."""
    return [ChatMessage(role="user", content=query or "")] if messages is None else messages


def relevance(q_value: float) -> float:
    """Logistic function of Q, computed without overflow."""
    if q_value >= 0:
        return 1 / (1 + math.exp(-q_value))
    return math.exp(q_value) / (1 + math.exp(q_value))


def best_first(q_values: Sequence[float]) -> list[int]:
    """Indices by descending Q; ties keep the request's order."""
    return sorted(range(len(q_values)), key=lambda i: -q_values[i])


def tokens_of(scored: ScoreResult) -> int:
    """Tokens of history and documents, cached ones included."""
    return scored.computed_tokens + scored.cached_tokens


class DocumentObject(RerankBody, frozen=True, extra="allow", strict=True):
    """A document as an object, whose other fields come back with it."""

    text: str | None = None

    def text_of(self, fields: Sequence[str]) -> str:
        """The values of these fields, one after the other; "" if it has none of them."""
        values = self.model_dump(exclude_none=True)
        given = [values[field] for field in fields if field in values]
        return "\n".join(one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in given)


def exactly_one_history(text: tuple[str, ...], types: list[str]) -> dict[str, Any]:
    """JSON schema for exactly one history: a text under one of its names, or messages."""
    null = {"type": "null"}
    branches = []
    for place, name in enumerate(text):
        given: dict[str, Any] = {name: {"type": types}, "messages": null}
        # An earlier name, even with null, takes precedence over a later one.
        branches.append((name, given | dict.fromkeys(text[:place], False)))
    branches.append(("messages", {"messages": {"type": "array"}} | dict.fromkeys(text, null)))
    return {"oneOf": [{"required": [name], "properties": given} for name, given in branches]}


class RerankRequest(RerankBody):
    """Fields that Jina's and Cohere's requests have in common."""

    model_config = ConfigDict(json_schema_extra=exactly_one_history(("query",), ["string"]))

    model: QModelName = None
    query: str | None = Field(default=None, description="the history as a single user message")
    messages: Messages = None
    documents: ListOf[str | DocumentObject] = Field(description="the candidates", json_schema_extra=NOT_EMPTY)
    rank_fields: ListOf[str] | None = Field(
        default=None,
        description="Cohere's: the fields of documents that are objects, in the order in which they are read; null "
        "reads `text`",
    )
    top_n: TopN = None
    episode_id: EpisodeId = None

    @property
    def texts(self) -> list[str]:
        """Texts of the documents."""
        fields, texts = self.rank_fields or ("text",), list[str]()
        for index, one in enumerate(self.documents):
            texts.append(one if isinstance(one, str) else one.text_of(fields))
            if not texts[-1] and not isinstance(one, str):
                raise InvalidCandidatesError(
                    f"documents[{index}] has no text in {', '.join(fields)}; name its fields in rank_fields"
                )
        return texts

    @model_validator(mode="after")
    def _one_history(self) -> Self:
        if (self.query is None) == (self.messages is None):
            raise ValueError("give either query or messages, not both")
        return self


class RankedDocument(RerankBody):
    """One document of the ranking, which is sorted by Q."""

    index: int
    relevance_score: RelevanceScore
    q_value: float = Field(description="ours: the raw Q")


class JinaRerankRequest(RerankRequest):
    """Jina's `POST /v1/rerank`."""

    return_documents: bool = False
    raw_scores: bool | None = Field(
        default=None,
        description="Infinity's: true puts the raw Q into `relevance_score`; if it is sent at all, `document` is a "
        "plain text, as Infinity's clients expect",
    )
    use_activation: bool | None = Field(default=None, description="vLLM's: false is raw_scores")

    @property
    def raw(self) -> bool:
        """True if `relevance_score` is the raw Q."""
        return bool(self.raw_scores) or self.use_activation is False


class JinaRankedDocument(RankedDocument):
    """One document of Jina's ranking, with its text if requested."""

    relevance_score: float = Field(
        description="1 / (1 + exp(-q_value)): a ranking, not a probability; or the raw Q if "
        "`raw_scores` or `use_activation` asked for it"
    )
    document: DocumentObject | str | None = None


class JinaUsage(RerankBody):
    """Tokens of history and documents; `cached_tokens` is ours."""

    prompt_tokens: int
    total_tokens: int
    cached_tokens: int


class JinaRerankResponse(RerankBody):
    """Jina's response; `model` is the `name@version` that scored."""

    id: str
    object: Literal["rerank"] = "rerank"
    model: str
    results: list[JinaRankedDocument]
    usage: JinaUsage


def jina_response(body: JinaRerankRequest, q_model: str, scored: ScoreResult) -> JinaRerankResponse:
    """Jina's response, best document first."""
    shown: Sequence[DocumentObject | str] | None = None
    if body.return_documents:  # as Infinity's clients read them, which send `raw_scores`, or as Jina's do
        objects = [DocumentObject(text=one) if isinstance(one, str) else one for one in body.documents]
        shown = objects if body.raw_scores is None else body.texts
    return JinaRerankResponse(
        id=f"rerank-{uuid.uuid4().hex}",
        model=q_model,
        results=[
            JinaRankedDocument(
                index=i,
                relevance_score=scored.q_values[i] if body.raw else relevance(scored.q_values[i]),
                q_value=scored.q_values[i],
                document=shown[i] if shown else None,
            )
            for i in best_first(scored.q_values)[: body.top_n]
        ],
        usage=JinaUsage(
            prompt_tokens=tokens_of(scored), total_tokens=tokens_of(scored), cached_tokens=scored.cached_tokens
        ),
    )


class CohereRerankRequest(RerankRequest):
    """Cohere's `POST /v2/rerank`."""

    max_tokens_per_doc: Integer | None = Field(
        default=None, description="ignored, because a truncated action is another action"
    )


class CohereApiVersion(RerankBody):
    """Version of Cohere's API."""

    version: Literal["2"] = "2"


class CohereBilledUnits(RerankBody):
    """Billed units of Cohere's API: one search per request."""

    search_units: int = 1


class CohereTokens(RerankBody):
    """Tokens of history and documents."""

    input_tokens: int
    output_tokens: int = 0


class CohereMeta(RerankBody):
    """Metadata of Cohere's response."""

    api_version: CohereApiVersion = CohereApiVersion()
    billed_units: CohereBilledUnits = CohereBilledUnits()
    tokens: CohereTokens
    cached_tokens: int
    warnings: list[str] | None = None


class CohereRerankResponse(RerankBody):
    """Cohere's response; `model` (ours) is the `name@version` that scored."""

    id: str
    results: list[RankedDocument]
    meta: CohereMeta
    model: str


def cohere_response(body: CohereRerankRequest, q_model: str, scored: ScoreResult) -> CohereRerankResponse:
    """Cohere's response, best document first."""
    return CohereRerankResponse(
        id=str(uuid.uuid4()),
        results=[
            RankedDocument(index=i, relevance_score=relevance(scored.q_values[i]), q_value=scored.q_values[i])
            for i in best_first(scored.q_values)[: body.top_n]
        ],
        meta=CohereMeta(
            tokens=CohereTokens(input_tokens=tokens_of(scored)),
            cached_tokens=scored.cached_tokens,
            warnings=None if body.max_tokens_per_doc is None else [NOT_CUT],
        ),
        model=q_model,
    )
