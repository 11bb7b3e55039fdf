"""POST /classify and /pooling: Q of a conversation's last action, in vLLM's format."""

from fastapi import APIRouter

from server.guidance.score_step import Scored, ScoringService
from server.rerank.pooling import ClassifyResponse, PoolingRequest, PoolingResponse
from server.routes.dependencies import ScoringDep

router = APIRouter(tags=["rerank"])


@router.post("/classify")
async def classify(body: PoolingRequest, scoring: ScoringDep) -> ClassifyResponse:
    """Return Q as the score of the only label; raw with `use_activation` false."""
    return ClassifyResponse.of(body, *await _score(body, scoring))


@router.post("/pooling")
async def pool(body: PoolingRequest, scoring: ScoringDep) -> PoolingResponse:
    """Return Q as a vector of one number; raw with `use_activation` false."""
    return PoolingResponse.of(body, *await _score(body, scoring))


async def _score(body: PoolingRequest, scoring: ScoringService) -> tuple[str, Scored]:
    """Score the last action; returns the `name@version` that scored as well."""
    history, action = body.split()
    q_model, scored = await scoring.step(
        scoring.history(history),
        scoring.candidates([action]),
        q_model=scoring.reranker(body.model),
        episode_id=body.episode_id,
    )
    return q_model.id, scored
