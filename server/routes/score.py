"""POST /v1/score: Q for the caller's own candidates."""

from time import perf_counter

from fastapi import APIRouter

from qnet.selection import select
from qnet.types import ScoreRequest
from server.deadline import DeadlineDep
from server.dependencies import ModelsDep, SettingsDep, TelemetryDep
from server.history import to_candidates, to_history
from server.schemas import (
    Score,
    ScoreRequestBody,
    ScoreResponse,
    ScoreTimings,
    ScoreUsage,
)

router = APIRouter(prefix="/v1", tags=["guidance"])


@router.post("/score")
async def score_candidates(
    body: ScoreRequestBody,
    settings: SettingsDep,
    models: ModelsDep,
    telemetry: TelemetryDep,
    deadline: DeadlineDep,
) -> ScoreResponse:
    """Score what the caller's agent might say next; nothing is drawn."""
    started = perf_counter()
    with models.q_models.hold(body.q_model, episode_id=body.episode_id) as q_model:
        history = to_history(
            body.messages, most=settings.max_history_messages, most_bytes=settings.max_text_bytes
        )
        candidates = to_candidates(
            body.candidates, most=settings.max_candidates, most_bytes=settings.max_text_bytes
        )
        asked = perf_counter()
        async with deadline.kept():
            result = await q_model.scorer.score(ScoreRequest(history, candidates))
        known = perf_counter()
        telemetry.count_scored(
            q_model.id, computed=result.computed_tokens, cached=result.cached_tokens
        )
    selection = select(candidates, result.q_values)
    telemetry.stage_seconds.labels("score").observe(known - asked)
    telemetry.candidates.observe(len(candidates))
    return ScoreResponse(
        scores=[Score(index=i, q_value=q) for i, q in enumerate(result.q_values)],
        chosen=selection.chosen,
        reason=selection.reason,
        q_model=q_model.name,
        q_model_version=q_model.version,
        usage=ScoreUsage(scored_tokens=result.computed_tokens, cached_tokens=result.cached_tokens),
        timings_ms=ScoreTimings(
            score=(known - asked) * 1e3, total=(perf_counter() - started) * 1e3
        ),
    )
