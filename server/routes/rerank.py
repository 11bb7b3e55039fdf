"""POST /v1/rerank, /v2/rerank and /score: Q in the shapes of Jina, Cohere and vLLM.

vLLM's clients also ask at /rerank, where its shape is Jina's, and at /v1/score, which is ours too.

The query is what the user said, the documents are what the agent might answer. Rerankers promise
scores in [0, 1], which Q need not be in; so `relevance_score` is the logistic function of Q. It
keeps the order and means nothing more: a Q model is trained on returns, not on relevance, and no
softmax over the documents is taken. The raw Q stands beside it, and alone in `/score`.
"""

import math
import uuid
from collections.abc import Sequence
from time import time

from fastapi import APIRouter

from qnet.errors import InvalidCandidatesError
from qnet.support.concurrency import all_of
from qnet.types import History, Message
from server.guidance.score_step import Scored, Scoring
from server.messages.schemas import ChatMessage
from server.q_models.registry import QModelLease
from server.rerank.schemas import (
    CachedTokens,
    CohereMeta,
    CohereRerankRequest,
    CohereRerankResponse,
    CohereTokens,
    DocumentText,
    JinaRankedDocument,
    JinaRerankRequest,
    JinaRerankResponse,
    JinaUsage,
    PairScore,
    PairScoreRequest,
    PairScoreResponse,
    PairScoreUsage,
    RankedDocument,
    RerankRequest,
)
from server.routes.dependencies import ScoringDep

router = APIRouter(tags=["rerank"])

NOT_CUT = "max_tokens_per_doc is not applied: documents are actions and are never cut"


@router.post("/rerank", response_model_exclude_none=True)
@router.post("/v1/rerank", response_model_exclude_none=True)
async def rerank_like_jina(
    body: JinaRerankRequest,
    scoring: ScoringDep,
) -> JinaRerankResponse:
    """Sort the documents by Q; Jina's shape."""
    q_model, scored = await _rank(body, body.texts, scoring)
    shown = [DocumentText(text=text) for text in body.texts] if body.return_documents else None
    return JinaRerankResponse(
        model=q_model,
        results=[
            JinaRankedDocument(
                index=i,
                relevance_score=relevance(scored.q_values[i]),
                q_value=scored.q_values[i],
                document=shown[i] if shown else None,
            )
            for i in best_first(scored.q_values)[: body.top_n]
        ],
        usage=JinaUsage(total_tokens=_tokens(scored), cached_tokens=scored.cached_tokens),
    )


@router.post("/v2/rerank", response_model_exclude_none=True)
async def rerank_like_cohere(
    body: CohereRerankRequest,
    scoring: ScoringDep,
) -> CohereRerankResponse:
    """Sort the documents by Q; Cohere's shape."""
    q_model, scored = await _rank(body, body.documents, scoring)
    return CohereRerankResponse(
        id=str(uuid.uuid4()),
        results=[
            RankedDocument(
                index=i,
                relevance_score=relevance(scored.q_values[i]),
                q_value=scored.q_values[i],
            )
            for i in best_first(scored.q_values)[: body.top_n]
        ],
        meta=CohereMeta(
            tokens=CohereTokens(input_tokens=_tokens(scored)),
            cached_tokens=scored.cached_tokens,
            warnings=None if body.max_tokens_per_doc is None else [NOT_CUT],
        ),
        model=q_model,
    )


@router.post("/score")
async def score_pairs(body: PairScoreRequest, scoring: ScoringDep) -> PairScoreResponse:
    """The raw Q of each pair of a query and a document; vLLM's shape."""
    texts = [body.documents] if isinstance(body.documents, str) else body.documents
    documents = scoring.documents(texts)
    histories = _histories(body, len(documents), scoring)
    with scoring.hold(body.model, body.episode_id) as q_model:
        q_values, scored = await _score_pairs(histories, documents, q_model, scoring)
    tokens = sum(map(_tokens, scored))
    cached = sum(one.cached_tokens for one in scored)
    return PairScoreResponse(
        id=f"score-{uuid.uuid4().hex}",
        created=int(time()),
        model=q_model.id,
        data=[PairScore(index=i, score=q) for i, q in enumerate(q_values)],
        usage=PairScoreUsage(
            prompt_tokens=tokens,
            total_tokens=tokens,
            prompt_tokens_details=CachedTokens(cached_tokens=cached),
        ),
    )


def relevance(q_value: float) -> float:
    """The logistic function: monotone, into [0, 1], without overflow."""
    if q_value >= 0:
        return 1 / (1 + math.exp(-q_value))
    return math.exp(q_value) / (1 + math.exp(q_value))


def best_first(q_values: Sequence[float]) -> list[int]:
    """Indices from the highest Q to the lowest; equal ones in the order in which they came."""
    return sorted(range(len(q_values)), key=lambda i: -q_values[i])


async def _rank(body: RerankRequest, texts: Sequence[str], scoring: Scoring) -> tuple[str, Scored]:
    """Which version scored, and what it said of each document."""
    q_model, scored = await scoring.step(
        _history(body.query, body.messages, scoring),
        scoring.documents(texts),
        q_model=body.model,
        episode_id=body.episode_id,
    )
    return q_model.id, scored


async def _score_pairs(
    histories: Sequence[History],
    documents: Sequence[Message],
    q_model: QModelLease,
    scoring: Scoring,
) -> tuple[list[float], list[Scored]]:
    """Q of each pair, in order; pairs with the same history are one request of the Q model."""
    places: dict[History, list[int]] = {}
    for place, history in enumerate(histories):
        places.setdefault(history, []).append(place)
    scored = await all_of(
        [
            scoring.score(history, [documents[i] for i in mine], q_model)
            for history, mine in places.items()
        ]
    )
    q_of_place = {
        place: q
        for mine, one in zip(places.values(), scored, strict=True)
        for place, q in zip(mine, one.q_values, strict=True)
    }
    return [q_of_place[place] for place in range(len(documents))], scored


def _histories(body: PairScoreRequest, number: int, scoring: Scoring) -> list[History]:
    """One per document."""
    if body.queries is None or isinstance(body.queries, str):
        return [_history(body.queries, body.messages, scoring)] * number
    histories = [_history(query, None, scoring) for query in body.queries]
    if len(histories) not in (1, number):
        raise InvalidCandidatesError(
            f"{len(histories)} queries and {number} documents make no pairs; give one query or as "
            "many as documents"
        )
    return histories * number if len(histories) == 1 else histories


def _history(
    query: str | None, messages: Sequence[ChatMessage] | None, scoring: Scoring
) -> History:
    if messages is None:
        messages = [ChatMessage(role="user", content=query or "")]
    return scoring.history(messages)


def _tokens(scored: Scored) -> int:
    return scored.computed_tokens + scored.cached_tokens
