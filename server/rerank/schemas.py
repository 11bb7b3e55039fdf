"""The bodies of endpoints that other projects defined: Jina, Cohere and vLLM.

Their clients add parameters as they go, so what is not known here is passed over instead of
refused. Fields of ours are marked so; foreign clients ignore them.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from server.messages.schemas import (
    NOT_EMPTY,
    OUR_SHAPE,
    VLLM_SHAPE,
    ChatMessage,
    EpisodeArm,
    EpisodeId,
    Integer,
    Positive,
    QModelName,
    ScoreRequestBody,
)

TopN = Annotated[
    Positive | None, Field(description="how many of the best to return; null returns all")
]
Messages = Annotated[
    list[ChatMessage] | None,
    Field(
        description="ours: the whole history, in place of the query", json_schema_extra=NOT_EMPTY
    ),
]
RelevanceScore = Annotated[
    float, Field(ge=0, le=1, description="1 / (1 + exp(-q_value)): an order, not a probability")
]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, populate_by_name=True)


class DocumentText(_Body):
    """A document as an object."""

    text: str


def _either(text: tuple[str, ...], types: list[str]) -> dict[str, Any]:
    """Schema of exactly one history: a text under one of its names, or messages."""
    null = {"type": "null"}
    branches = []
    for place, name in enumerate(text):
        given: dict[str, Any] = {name: {"type": types}, "messages": null}
        # An earlier name, even with null, goes before a later one.
        branches.append((name, given | dict.fromkeys(text[:place], False)))
    branches.append(("messages", {"messages": {"type": "array"}} | dict.fromkeys(text, null)))
    return {"oneOf": [{"required": [name], "properties": given} for name, given in branches]}


class RerankRequest(_Body):
    """What Jina's and Cohere's requests have in common."""

    model_config = ConfigDict(json_schema_extra=_either(("query",), ["string"]))

    model: QModelName = None
    query: str | None = Field(default=None, description="the history's one user message")
    messages: Messages = None
    top_n: TopN = None
    episode_id: EpisodeId = None

    @model_validator(mode="after")
    def _one_history(self) -> Self:
        if (self.query is None) == (self.messages is None):
            raise ValueError("give either query or messages")
        return self


class JinaRerankRequest(RerankRequest):
    """Jina's `POST /v1/rerank`."""

    documents: list[str | DocumentText] = Field(
        description="the candidates", json_schema_extra=NOT_EMPTY
    )
    return_documents: bool = False

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [one if isinstance(one, str) else one.text for one in self.documents]


class CohereRerankRequest(RerankRequest):
    """Cohere's `POST /v2/rerank`."""

    documents: list[str] = Field(description="the candidates", json_schema_extra=NOT_EMPTY)
    max_tokens_per_doc: Integer | None = Field(
        default=None, description="not applied: a part of an action is another action"
    )


class RankedDocument(_Body):
    """A document's place; the list is sorted by Q."""

    index: int
    relevance_score: RelevanceScore
    q_value: float = Field(description="ours: the raw Q")


class JinaRankedDocument(RankedDocument):
    """Also the document, if it was asked for."""

    document: DocumentText | None = None


class JinaUsage(_Body):
    """Tokens of the history and the documents; those found in the cache are ours to tell."""

    total_tokens: int
    cached_tokens: int


class JinaRerankResponse(_Body):
    """Jina's answer; `model` is the `name@version` that scored."""

    model: str
    results: list[JinaRankedDocument]
    usage: JinaUsage


class CohereApiVersion(_Body):
    """Which API this is."""

    version: Literal["2"] = "2"


class CohereBilledUnits(_Body):
    """One request is one search; nothing is billed."""

    search_units: int = 1


class CohereTokens(_Body):
    """Tokens of the history and the documents."""

    input_tokens: int
    output_tokens: int = 0


class CohereMeta(_Body):
    """What Cohere's clients show beside the results."""

    api_version: CohereApiVersion = CohereApiVersion()
    billed_units: CohereBilledUnits = CohereBilledUnits()
    tokens: CohereTokens
    cached_tokens: int
    warnings: list[str] | None = None


class CohereRerankResponse(_Body):
    """Cohere's answer, and which `name@version` scored (ours)."""

    id: str
    results: list[RankedDocument]
    meta: CohereMeta
    model: str


_DOCUMENTS: Final = ("documents", "items", "text_2")
_QUERIES: Final = ("queries", "text_1")


def _name_all(schema: dict[str, Any]) -> None:
    """Let the schema know all the names that a field of vLLM's has."""
    properties = schema["properties"]
    for first, *others in (_DOCUMENTS, _QUERIES):
        properties |= {name: properties[first] | {"title": name} for name in others}
    del schema["required"]
    schema |= _either(_QUERIES, ["string", "array"])
    schema["anyOf"] = [{"required": [name]} for name in _DOCUMENTS]


class PairScoreRequest(_Body):
    """vLLM's `POST /score`: one text against many, or as many against as many."""

    model_config = ConfigDict(json_schema_extra=_name_all)

    model: QModelName = None
    queries: str | list[str] | None = Field(
        default=None,
        validation_alias=AliasChoices(*_QUERIES),
        description="the history's one user message, or one for each document; also `text_1`",
        json_schema_extra=NOT_EMPTY,
    )
    messages: Messages = None
    documents: str | list[str] = Field(
        validation_alias=AliasChoices(*_DOCUMENTS),
        description="the candidates; also `items` or `text_2`",
        json_schema_extra=NOT_EMPTY,
    )
    episode_id: EpisodeArm = None

    @model_validator(mode="after")
    def _one_history(self) -> Self:
        if (self.queries is None) == (self.messages is None):
            raise ValueError("give either queries (or text_1) or messages")
        return self


def _shape(body: object) -> str:
    """Whose `POST /v1/score` a body is; ours has no documents."""
    theirs = isinstance(body, PairScoreRequest) or (
        isinstance(body, dict) and not body.keys().isdisjoint(_DOCUMENTS)
    )
    return VLLM_SHAPE if theirs else OUR_SHAPE


EitherScoreRequest = Annotated[
    Annotated[ScoreRequestBody, Tag(OUR_SHAPE)] | Annotated[PairScoreRequest, Tag(VLLM_SHAPE)],
    Discriminator(_shape),
]


class PairScore(_Body):
    """The raw Q of one pair."""

    index: int
    object: Literal["score"] = "score"
    score: float


class CachedTokens(_Body):
    """What of the prompt was in the cache."""

    cached_tokens: int


class PairScoreUsage(_Body):
    """OpenAI's words: tokens of the histories and the documents."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: CachedTokens


class PairScoreResponse(_Body):
    """vLLM's answer; `model` is the `name@version` that scored."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[PairScore]
    usage: PairScoreUsage
