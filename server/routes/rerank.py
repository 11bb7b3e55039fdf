"""POST /v1/rerank, /v2/rerank and /score: Q in the shapes of Jina, Cohere and vLLM.

The query is what the user said, the documents are what the agent might answer. Rerankers promise
scores in [0, 1], which Q need not be in; so `relevance_score` is the logistic function of Q. It
keeps the order and means nothing more: a Q model is trained on returns, not on relevance, and no
softmax over the documents is taken. The raw Q stands beside it, and alone in `/score`.
"""

import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from time import time

from fastapi import APIRouter

from qnet.concurrency import all_of
from qnet.deadline import Deadline
from qnet.errors import InvalidCandidatesError
from qnet.types import History, Message
from server.dependencies import DeadlineDep, EpisodesDep, ModelsDep, SettingsDep, TelemetryDep
from server.episodes.service import Episodes
from server.history import to_documents, to_history
from server.models import Models
from server.q_models import Held
from server.rerank_schemas import (
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
from server.schemas import ChatMessage
from server.scoring import Scored, remember, score_once
from server.settings import Settings
from server.telemetry import Telemetry

router = APIRouter(tags=["rerank"])

NOT_CUT = "max_tokens_per_doc is not applied: documents are actions and are never cut"


@router.post("/v1/rerank", response_model_exclude_none=True)
async def rerank_like_jina(
    body: JinaRerankRequest,
    settings: SettingsDep,
    models: ModelsDep,
    episodes: EpisodesDep,
    telemetry: TelemetryDep,
    deadline: DeadlineDep,
) -> JinaRerankResponse:
    """Sort the documents by Q; Jina's shape."""
    service = _Service(settings, models, episodes, telemetry, deadline)
    q_model, scored = await _rank(body, body.texts, service)
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
            for i in ranking(scored.q_values)[: body.top_n]
        ],
        usage=JinaUsage(total_tokens=_tokens(scored), cached_tokens=scored.cached_tokens),
    )


@router.post("/v2/rerank", response_model_exclude_none=True)
async def rerank_like_cohere(
    body: CohereRerankRequest,
    settings: SettingsDep,
    models: ModelsDep,
    episodes: EpisodesDep,
    telemetry: TelemetryDep,
    deadline: DeadlineDep,
) -> CohereRerankResponse:
    """Sort the documents by Q; Cohere's shape."""
    service = _Service(settings, models, episodes, telemetry, deadline)
    q_model, scored = await _rank(body, body.documents, service)
    return CohereRerankResponse(
        id=str(uuid.uuid4()),
        results=[
            RankedDocument(
                index=i,
                relevance_score=relevance(scored.q_values[i]),
                q_value=scored.q_values[i],
            )
            for i in ranking(scored.q_values)[: body.top_n]
        ],
        meta=CohereMeta(
            tokens=CohereTokens(input_tokens=_tokens(scored)),
            cached_tokens=scored.cached_tokens,
            warnings=None if body.max_tokens_per_doc is None else [NOT_CUT],
        ),
        model=q_model,
    )


@router.post("/score")
async def score_pairs(
    body: PairScoreRequest,
    settings: SettingsDep,
    models: ModelsDep,
    telemetry: TelemetryDep,
    deadline: DeadlineDep,
) -> PairScoreResponse:
    """The raw Q of each pair of a query and a document; vLLM's shape."""
    texts = [body.documents] if isinstance(body.documents, str) else body.documents
    documents = to_documents(
        texts, most=settings.max_candidates, most_bytes=settings.max_text_bytes
    )
    histories = _histories(body, len(documents), settings)
    with models.q_models.hold(body.model, episode_id=body.episode_id) as q_model:
        q_values, scored = await _score_pairs(histories, documents, q_model, telemetry, deadline)
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


def ranking(q_values: Sequence[float]) -> list[int]:
    """Indices from the highest Q to the lowest; equal ones in the order in which they came."""
    return sorted(range(len(q_values)), key=lambda i: -q_values[i])


@dataclass(frozen=True, slots=True)
class _Service:
    settings: Settings
    models: Models
    episodes: Episodes
    telemetry: Telemetry
    deadline: Deadline


async def _rank(body: RerankRequest, texts: Sequence[str], service: _Service) -> tuple[str, Scored]:
    """Which version scored, and what it said of each document."""
    await service.episodes.begin_step(body.episode_id)
    history = _history(body.query, body.messages, service.settings)
    documents = to_documents(
        texts, most=service.settings.max_candidates, most_bytes=service.settings.max_text_bytes
    )
    with service.models.q_models.hold(body.model, episode_id=body.episode_id) as q_model:
        scored = await score_once(history, documents, q_model, service.telemetry, service.deadline)
    await remember(service.episodes, body.episode_id, history, documents, scored, q_model)
    return q_model.id, scored


async def _score_pairs(
    histories: Sequence[History],
    documents: Sequence[Message],
    q_model: Held,
    telemetry: Telemetry,
    deadline: Deadline,
) -> tuple[list[float], list[Scored]]:
    """Q of each pair, in order; pairs with the same history are one request of the Q model."""
    places: dict[History, list[int]] = {}
    for place, history in enumerate(histories):
        places.setdefault(history, []).append(place)
    scored = await all_of(
        [
            score_once(history, [documents[i] for i in mine], q_model, telemetry, deadline)
            for history, mine in places.items()
        ]
    )
    q_of_place = {
        place: q
        for mine, one in zip(places.values(), scored, strict=True)
        for place, q in zip(mine, one.q_values, strict=True)
    }
    return [q_of_place[place] for place in range(len(documents))], scored


def _histories(body: PairScoreRequest, number: int, settings: Settings) -> list[History]:
    """One per document."""
    if body.queries is None or isinstance(body.queries, str):
        return [_history(body.queries, body.messages, settings)] * number
    histories = [_history(query, None, settings) for query in body.queries]
    if len(histories) not in (1, number):
        raise InvalidCandidatesError(
            f"{len(histories)} queries and {number} documents make no pairs; give one query or as "
            "many as documents"
        )
    return histories * number if len(histories) == 1 else histories


def _history(
    query: str | None, messages: Sequence[ChatMessage] | None, settings: Settings
) -> History:
    if messages is None:
        messages = [ChatMessage(role="user", content=query or "")]
    return to_history(
        messages, most=settings.max_history_messages, most_bytes=settings.max_text_bytes
    )


def _tokens(scored: Scored) -> int:
    return scored.computed_tokens + scored.cached_tokens
