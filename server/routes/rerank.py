"""POST /v1/rerank, /v2/rerank and /score: Q in the formats of Jina, Cohere and vLLM.

vLLM's clients also call /rerank, where its format is Jina's, and /v1/score, which is ours as well.
"""

from collections.abc import Sequence

from fastapi import APIRouter

from qnet.errors import InvalidCandidatesError
from qnet.support.concurrency import all_of
from qnet.types import History, Message
from server.guidance.score_step import Scored, ScoringService
from server.messages.history import TriedCandidates
from server.q_models.registry import QModelLease
from server.rerank.schemas import (
    CohereRerankRequest,
    CohereRerankResponse,
    JinaRerankRequest,
    JinaRerankResponse,
    PairScoreRequest,
    PairScoreResponse,
    RerankRequest,
)
from server.rerank.translation import cohere_response, jina_response, messages_of, pair_response
from server.routes.dependencies import ScoringDep

router = APIRouter(tags=["rerank"])


@router.post("/rerank", response_model_exclude_none=True)
@router.post("/v1/rerank", response_model_exclude_none=True)
async def rerank_like_jina(
    body: JinaRerankRequest,
    scoring: ScoringDep,
) -> JinaRerankResponse:
    """Rank documents by Q, in Jina's format."""
    return jina_response(body, *await _rank(body, body.texts, scoring))


@router.post("/v2/rerank", response_model_exclude_none=True)
async def rerank_like_cohere(
    body: CohereRerankRequest,
    scoring: ScoringDep,
) -> CohereRerankResponse:
    """Rank documents by Q, in Cohere's format."""
    return cohere_response(body, *await _rank(body, body.documents, scoring))


@router.post("/score")
async def score_pairs(body: PairScoreRequest, scoring: ScoringDep) -> PairScoreResponse:
    """Return the raw Q of each pair of query and document, in vLLM's format."""
    texts = [body.documents] if isinstance(body.documents, str) else body.documents
    documents = scoring.documents(texts)
    histories = _histories(body, len(documents), scoring)
    with scoring.hold(body.model, body.episode_id) as q_model:
        q_values, scored = await _score_pairs(histories, documents, q_model, scoring)
    return pair_response(q_values, q_model.id, scored)


async def _rank(
    body: RerankRequest, texts: Sequence[str], scoring: ScoringService
) -> tuple[str, Scored]:
    """Score the documents; returns the `name@version` that scored as well."""
    q_model, scored = await scoring.step(
        scoring.history(messages_of(body.query, body.messages)),
        TriedCandidates(scoring.documents(texts)),
        q_model=body.model,
        episode_id=body.episode_id,
    )
    return q_model.id, scored


async def _score_pairs(
    histories: Sequence[History],
    documents: Sequence[Message],
    q_model: QModelLease,
    scoring: ScoringService,
) -> tuple[list[float], list[Scored]]:
    """Q of each pair, in order; pairs with the same history are scored as one request."""
    places: dict[History, list[int]] = {}
    for place, history in enumerate(histories):
        places.setdefault(history, []).append(place)
    scored = await all_of(
        [
            scoring.score(history, TriedCandidates(tuple(documents[i] for i in mine)), q_model)
            for history, mine in places.items()
        ]
    )
    q_of_place = {
        place: q
        for mine, one in zip(places.values(), scored, strict=True)
        for place, q in zip(mine, one.q_values, strict=True)
    }
    return [q_of_place[place] for place in range(len(documents))], scored


def _histories(body: PairScoreRequest, number: int, scoring: ScoringService) -> list[History]:
    """One history per document."""
    if body.queries is None or isinstance(body.queries, str):
        return [scoring.history(messages_of(body.queries, body.messages))] * number
    histories = [scoring.history(messages_of(query, None)) for query in body.queries]
    if len(histories) not in (1, number):
        raise InvalidCandidatesError(
            f"{len(histories)} queries and {number} documents cannot be paired; send one query, or "
            "one per document"
        )
    return histories * number if len(histories) == 1 else histories
