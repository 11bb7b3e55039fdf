"""Rerank requests as TEI (text-embeddings-inference) and Voyage send them, and their answers.

Both call paths that Jina's clients call as well; the fields tell them apart.
"""

import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag

from qguide.qnet.turns import paced
from qguide.qnet.types import ScoreResult
from qguide.server.own_bodies.schemas import NOT_EMPTY, EpisodeId, ListOf, Positive, QModelName
from qguide.server.q_models.served import Texts
from qguide.server.rerank.jina_cohere import (
    JinaRerankRequest,
    RankedDocument,
    RerankBody,
    best_first,
    relevance,
    tokens_of,
)

_JINA: Final = "(Jina's)"
_TEI: Final = "(TEI's)"
_VOYAGE: Final = "(Voyage's)"  # tags of the schemas that one path accepts; they are not fields

_VOYAGES: Final = ("truncation", "top_k")
_JINAS: Final = ("top_n", "messages", "raw_scores", "use_activation")
"""Fields that Voyage's clients never send; what they ask for must not get lost."""


class TeiRerankRequest(RerankBody):
    """TEI's `POST /rerank`."""

    model: QModelName = None
    query: str = Field(description="the history as a single user message")
    texts: ListOf[str] = Field(description="the candidates", json_schema_extra=NOT_EMPTY)
    raw_scores: bool = Field(default=False, description="true returns the raw Q")
    return_text: bool = False
    episode_id: EpisodeId = None


class TeiRank(RerankBody):
    """One text of TEI's ranking, which is sorted by Q."""

    index: int
    score: float = Field(description="1 / (1 + exp(-Q)), or with `raw_scores` Q itself")
    text: str | None = None


class TeiTokenizeRequest(RerankBody):
    """TEI's `POST /tokenize`."""

    model: QModelName = None
    inputs: str | ListOf[str] = Field(description="one text, or several")
    add_special_tokens: bool = Field(default=True, description="with the special tokens that frame a text")

    @property
    def texts(self) -> list[str]:
        """The texts, also if it is one."""
        return [self.inputs] if isinstance(self.inputs, str) else list(self.inputs)


class TeiToken(RerankBody):
    """A token of a text; a special one stands nowhere in it."""

    id: int
    text: str
    special: bool
    start: int | None = Field(default=None, description="first byte")
    stop: int | None = Field(default=None, description="byte after its last")


def tei_tokens(texts: Texts) -> bytes:
    """The tokens of several texts in TEI's format."""
    write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    rows = (",".join(write(one._asdict()) for one in paced(pieces)) for pieces in texts)
    return f"[{','.join(f'[{row}]' for row in rows)}]".encode()


class TeiInfo(RerankBody):
    """TEI's `GET /info`: the Q model that a request without `model` asks, and limits."""

    model_id: str
    model_sha: str | None = None
    model_dtype: str
    model_type: dict[str, Any] = Field(
        default={"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}},
        description="a reranker with one label",
    )
    max_concurrent_requests: int
    max_input_length: int | None = Field(description="tokens of history and candidate")
    max_batch_tokens: int
    max_batch_requests: int | None = None
    max_client_batch_size: int = Field(description="texts of a request")
    auto_truncate: bool = False
    tokenization_workers: int = 2
    version: str = Field(default_factory=lambda: version("qguide"), description="of QGuide")
    sha: str | None = None
    docker_label: str | None = None


class VoyageRerankRequest(RerankBody):
    """Voyage's `POST /v1/rerank`."""

    model: QModelName = None
    query: str = Field(description="the history as a single user message")
    documents: ListOf[str] = Field(description="the candidates", json_schema_extra=NOT_EMPTY)
    top_k: Positive | None = Field(default=None, description="null returns all documents")
    truncation: bool = Field(default=True, description="ignored, because a truncated action is another action")
    return_documents: bool = False
    episode_id: EpisodeId = None


class VoyageRank(RankedDocument):
    """One document of Voyage's ranking, which is sorted by Q."""

    document: str | None = None


class VoyageUsage(RerankBody):
    """Tokens of history and documents."""

    total_tokens: int


class VoyageRerankResponse(RerankBody):
    """Voyage's response; `model` is the `name@version` that scored."""

    object: Literal["list"] = "list"
    data: list[VoyageRank]
    model: str
    usage: VoyageUsage


def _shape(body: object) -> str:
    """Tag of the schema of a body: TEI's has texts, Voyage's has fields that Jina's has not.

    Some clients of Jina's API send Voyage's `truncation` as well; fields of Jina's alone decide.
    """
    if not isinstance(body, dict):
        if isinstance(body, TeiRerankRequest):
            return _TEI
        return _VOYAGE if isinstance(body, VoyageRerankRequest) else _JINA
    if "texts" in body:
        return _TEI
    voyages = not body.keys().isdisjoint(_VOYAGES)
    jinas = any(body.get(name) is not None for name in _JINAS)
    return _VOYAGE if voyages and not jinas else _JINA


AnyRerankRequest = Annotated[
    Annotated[JinaRerankRequest, Tag(_JINA)]
    | Annotated[TeiRerankRequest, Tag(_TEI)]
    | Annotated[VoyageRerankRequest, Tag(_VOYAGE)],
    Discriminator(_shape),
]


def tei_response(body: TeiRerankRequest, scored: ScoreResult) -> list[TeiRank]:
    """TEI's response: a plain list, best text first."""
    q_values = scored.q_values
    return [
        TeiRank(
            index=i,
            score=q_values[i] if body.raw_scores else relevance(q_values[i]),
            text=body.texts[i] if body.return_text else None,
        )
        for i in best_first(q_values)
    ]


def voyage_response(body: VoyageRerankRequest, q_model: str, scored: ScoreResult) -> VoyageRerankResponse:
    """Voyage's response, best document first."""
    q_values: Sequence[float] = scored.q_values
    return VoyageRerankResponse(
        data=[
            VoyageRank(
                index=i,
                relevance_score=relevance(q_values[i]),
                q_value=q_values[i],
                document=body.documents[i] if body.return_documents else None,
            )
            for i in best_first(q_values)[: body.top_k]
        ],
        model=q_model,
        usage=VoyageUsage(total_tokens=tokens_of(scored)),
    )
