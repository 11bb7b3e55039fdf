"""POST /classify and /pooling: Q of a conversation's last action, in vLLM's format."""

from fastapi import APIRouter, Request

from qguide.server.bodies.parsing import translate_body
from qguide.server.bodies.route import BodyRoute
from qguide.server.guidance.score_step import Scored, ScoringService
from qguide.server.rerank.pooling import ClassifyResponse, PoolingRequest, PoolingResponse
from qguide.server.routes.dependencies import ScoringDep

router = APIRouter(tags=["rerank"], route_class=BodyRoute)


@router.post("/classify")
async def classify(body: PoolingRequest, request: Request, scoring: ScoringDep) -> ClassifyResponse:
    """Return Q as the score of the only label; raw with `use_activation` false."""
    return ClassifyResponse.of(body, *await _score(body, request, scoring))


@router.post("/pooling")
async def pool(body: PoolingRequest, request: Request, scoring: ScoringDep) -> PoolingResponse:
    """Return Q as a vector of one number; raw with `use_activation` false."""
    return PoolingResponse.of(body, *await _score(body, request, scoring))


async def _score(
    body: PoolingRequest, request: Request, scoring: ScoringService
) -> tuple[str, Scored]:
    """Score the last action; returns the `name@version` that scored as well."""
    history, action = await translate_body(request, body.split)
    q_model, scored = await scoring.step(
        scoring.history(history),
        scoring.candidates([action]),
        q_model=scoring.reranker(body.model),
        episode_id=body.episode_id,
    )
    return q_model.id, scored
