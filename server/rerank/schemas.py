"""Request and response bodies of Jina's, Cohere's and vLLM's rerank and score APIs.

Their clients keep adding parameters, so unknown ones are ignored instead of refused. Fields that we added are marked
"ours"; other clients ignore them.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from qguide.qnet.errors import InvalidCandidatesError
from qguide.server.own_bodies.schemas import (
    NOT_EMPTY,
    ChatMessage,
    EpisodeArm,
    EpisodeId,
    Integer,
    ListOf,
    Positive,
    QModelName,
    ScoreRequestBody,
)

_OURS: Final = "(ours)"
_VLLMS: Final = "(vLLM's)"  # tags of the schemas that one path accepts; they are not fields

TopN = Annotated[Positive | None, Field(description="number of documents to return, best first; null returns all")]
Messages = Annotated[
    ListOf[ChatMessage] | None,
    Field(description="ours: the whole history, in place of the query", json_schema_extra=NOT_EMPTY),
]
RelevanceScore = Annotated[
    float, Field(ge=0, le=1, description="1 / (1 + exp(-q_value)): a ranking, not a probability")
]


class RerankBody(BaseModel, frozen=True, extra="ignore", strict=True, populate_by_name=True):
    """Base of foreign bodies, whose unknown fields are ignored."""


class DocumentObject(RerankBody, frozen=True, extra="allow", strict=True):
    """A document as an object, whose other fields come back with it."""

    text: str | None = None

    def text_of(self, fields: Sequence[str]) -> str:
        """The values of these fields, one after the other; "" if it has none of them."""
        values = self.model_dump(exclude_none=True)
        given = [values[field] for field in fields if field in values]
        return "\n".join(one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in given)


def _exactly_one_history(text: tuple[str, ...], types: list[str]) -> dict[str, Any]:
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

    model_config = ConfigDict(json_schema_extra=_exactly_one_history(("query",), ["string"]))

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


class CohereRerankRequest(RerankRequest):
    """Cohere's `POST /v2/rerank`."""

    max_tokens_per_doc: Integer | None = Field(
        default=None, description="ignored, because a truncated action is another action"
    )


class RankedDocument(RerankBody):
    """One document of the ranking, which is sorted by Q."""

    index: int
    relevance_score: RelevanceScore
    q_value: float = Field(description="ours: the raw Q")


class JinaRankedDocument(RerankBody):
    """One document of Jina's ranking, with its text if requested."""

    index: int
    relevance_score: float = Field(
        description="1 / (1 + exp(-q_value)): a ranking, not a probability; or the raw Q if `raw_scores` or "
        "`use_activation` asked for it"
    )
    q_value: float = Field(description="ours: the raw Q")
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


_DOCUMENTS: Final = ("documents", "items", "text_2", "data_2")
_QUERIES: Final = ("queries", "text_1", "data_1")


def _add_field_aliases(schema: dict[str, Any]) -> None:
    properties = schema["properties"]
    for first, *others in (_DOCUMENTS, _QUERIES):
        properties |= {name: properties[first] | {"title": name} for name in others}
    del schema["required"]
    schema |= _exactly_one_history(_QUERIES, ["string", "array"])
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


class PairScoreResponse(RerankBody):
    """vLLM's response; `model` is the `name@version` that scored."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[PairScore]
    usage: PairScoreUsage


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
