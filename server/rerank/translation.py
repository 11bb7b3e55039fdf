"""Translation between Q-values and the rerank APIs of Jina, Cohere and vLLM.

The query is the user's message, the documents are the agent's possible answers. Rerankers return scores in [0, 1], but
Q can be any number, so `relevance_score` is the logistic function of Q. Only its order has a meaning: a Q model is
trained on returns, not on relevance, and there is no softmax over the documents. The raw Q is returned beside it;
vLLM's `/score` returns only one of the two, by default the raw Q.
"""

import math
import uuid
from collections.abc import Sequence
from time import time
from typing import Final

from qguide.qnet.types import ScoreResult
from qguide.server.own_bodies.schemas import ChatMessage
from qguide.server.rerank.schemas import (
    CachedTokens,
    CohereMeta,
    CohereRerankRequest,
    CohereRerankResponse,
    CohereTokens,
    DocumentObject,
    JinaRankedDocument,
    JinaRerankRequest,
    JinaRerankResponse,
    JinaUsage,
    PairScore,
    PairScoreResponse,
    PairScoreUsage,
    RankedDocument,
)

NOT_CUT: Final = "max_tokens_per_doc was ignored: documents are actions and are never truncated"


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


def jina_response(body: JinaRerankRequest, q_model: str, scored: ScoreResult) -> JinaRerankResponse:
    """Jina's response, best document first."""
    shown = _documents(body) if body.return_documents else None
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


def _documents(body: JinaRerankRequest) -> Sequence[DocumentObject | str]:
    """The documents as Infinity's clients read them, which send `raw_scores`, or as Jina's do."""
    if body.raw_scores is not None:
        return body.texts
    return [DocumentObject(text=one) if isinstance(one, str) else one for one in body.documents]


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


def pair_response(
    q_values: Sequence[float], q_model: str, scored: Sequence[ScoreResult], *, activation: bool
) -> PairScoreResponse:
    """vLLM's response: the Q of each pair, in the request's order."""
    tokens = sum(map(tokens_of, scored))
    cached = sum(one.cached_tokens for one in scored)
    return PairScoreResponse(
        id=f"score-{uuid.uuid4().hex}",
        created=int(time()),
        model=q_model,
        data=[PairScore(index=i, score=relevance(q) if activation else q) for i, q in enumerate(q_values)],
        usage=PairScoreUsage(
            prompt_tokens=tokens, total_tokens=tokens, prompt_tokens_details=CachedTokens(cached_tokens=cached)
        ),
    )


def tokens_of(scored: ScoreResult) -> int:
    """Tokens of history and documents, cached ones included."""
    return scored.computed_tokens + scored.cached_tokens
