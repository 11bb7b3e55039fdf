"""POST /v1/score: Q for the caller's own candidates."""

from time import perf_counter

from fastapi import APIRouter

from qnet.selection import select
from qnet.types import ScoreRequest
from server.dependencies import ModelsDep, SettingsDep, TelemetryDep
from server.history import to_candidates, to_history
from server.schemas import Score, ScoreRequestBody, ScoreResponse, Timings, Usage

router = APIRouter(prefix="/v1", tags=["guidance"])


@router.post("/score")
async def score_candidates(
    body: ScoreRequestBody, settings: SettingsDep, models: ModelsDep, telemetry: TelemetryDep
) -> ScoreResponse:
    """Score what the caller's agent might say next; nothing is drawn."""
    started = perf_counter()
    scorer = models.q_model(body.q_model)
    history = to_history(body.messages)
    candidates = to_candidates(body.candidates, most=settings.max_candidates)
    result = await scorer.model.score(ScoreRequest(history, candidates))
    selection = select(candidates, result.q_values)
    elapsed_s = perf_counter() - started
    telemetry.stage_seconds.labels("score").observe(elapsed_s)
    telemetry.candidates.observe(len(candidates))
    telemetry.count_tokens(completion=0, scored=result.computed_tokens, cached=result.cached_tokens)
    return ScoreResponse(
        scores=[Score(index=i, q_value=q) for i, q in enumerate(result.q_values)],
        chosen=selection.chosen,
        reason=selection.reason,
        q_model=scorer.name,
        usage=Usage(
            completion_tokens=0,
            scored_tokens=result.computed_tokens,
            cached_tokens=result.cached_tokens,
        ),
        timings_ms=Timings(sample=0.0, score=elapsed_s * 1e3, total=elapsed_s * 1e3),
    )
