"""POST /v1/score: Q for the caller's own candidates, of one history or of several."""

from time import perf_counter
from typing import Any

from fastapi import APIRouter

from qnet.concurrency import all_of
from qnet.deadline import Deadline
from qnet.errors import InvalidRequestError
from server.dependencies import DeadlineDep, EpisodesDep, ModelsDep, SettingsDep, TelemetryDep
from server.history import to_candidates, to_history
from server.q_models import Held
from server.schemas import (
    Score,
    ScoreBatchBody,
    ScoreBatchResponse,
    ScoredItem,
    ScoreItem,
    ScoreRequestBody,
    ScoreResponse,
    ScoreTimings,
    ScoreUsage,
)
from server.scoring import Scored, remember, score_once
from server.settings import Settings
from server.telemetry import Telemetry

router = APIRouter(prefix="/v1", tags=["guidance"])


@router.post("/score")
async def score_candidates(
    body: ScoreRequestBody,
    settings: SettingsDep,
    models: ModelsDep,
    episodes: EpisodesDep,
    telemetry: TelemetryDep,
    deadline: DeadlineDep,
) -> ScoreResponse:
    """Score what the caller's agent might say next; nothing is drawn."""
    started = perf_counter()
    await episodes.begin_step(body.episode_id)
    history = to_history(
        body.messages, most=settings.max_history_messages, most_bytes=settings.max_text_bytes
    )
    candidates = to_candidates(
        body.candidates, most=settings.max_candidates, most_bytes=settings.max_text_bytes
    )
    with models.q_models.hold(body.q_model, episode_id=body.episode_id) as q_model:
        scored = await score_once(history, candidates, q_model, telemetry, deadline)
    await remember(episodes, body.episode_id, history, candidates, scored, q_model)
    return ScoreResponse(
        **_shown(scored),
        q_model=q_model.name,
        q_model_version=q_model.version,
        timings_ms=ScoreTimings(score=scored.score_ms, total=(perf_counter() - started) * 1e3),
    )


@router.post("/score/batch")
async def score_batch(
    body: ScoreBatchBody,
    settings: SettingsDep,
    models: ModelsDep,
    telemetry: TelemetryDep,
    deadline: DeadlineDep,
) -> ScoreBatchResponse:
    """Score several histories with one version; either all of them are scored or none."""
    if not 1 <= len(body.items) <= settings.max_score_items:
        raise InvalidRequestError(
            f"{len(body.items)} items; give 1 to {settings.max_score_items} "
            "(QGUIDE_MAX_SCORE_ITEMS)"
        )
    started = perf_counter()
    with models.q_models.hold(body.q_model, episode_id=body.episode_id) as q_model:
        scored = await all_of(
            [
                _score_item(index, item, q_model, settings, telemetry, deadline)
                for index, item in enumerate(body.items)
            ]
        )
    known = perf_counter()
    return ScoreBatchResponse(
        items=[ScoredItem(**_shown(one)) for one in scored],
        q_model=q_model.name,
        q_model_version=q_model.version,
        timings_ms=ScoreTimings(
            score=max(one.score_ms for one in scored), total=(known - started) * 1e3
        ),
    )


async def _score_item(
    index: int,
    item: ScoreItem,
    q_model: Held,
    settings: Settings,
    telemetry: Telemetry,
    deadline: Deadline,
) -> Scored:
    try:
        history = to_history(
            item.messages, most=settings.max_history_messages, most_bytes=settings.max_text_bytes
        )
        candidates = to_candidates(
            item.candidates, most=settings.max_candidates, most_bytes=settings.max_text_bytes
        )
        return await score_once(history, candidates, q_model, telemetry, deadline)
    except InvalidRequestError as error:
        raise type(error)(f"items[{index}]: {error}") from error


def _shown(scored: Scored) -> dict[str, Any]:
    return {
        "scores": [Score(index=i, q_value=q) for i, q in enumerate(scored.q_values)],
        "chosen": scored.chosen,
        "reason": scored.reason,
        "usage": ScoreUsage(
            scored_tokens=scored.computed_tokens, cached_tokens=scored.cached_tokens
        ),
    }
