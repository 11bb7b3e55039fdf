"""POST /v1/act: draw M candidates, score them, return the best."""

import asyncio
from time import perf_counter

from fastapi import APIRouter

from qnet.agent import Decision, act
from qnet.errors import InvalidCandidatesError, ScorerUnavailableError
from qnet.types import Sampling
from server.dependencies import ModelsDep, SettingsDep, TelemetryDep
from server.history import to_history
from server.schemas import (
    ActRequest,
    ActResponse,
    ChatMessage,
    ScoredCandidate,
    Timings,
    Usage,
)
from server.telemetry import Telemetry

router = APIRouter(prefix="/v1", tags=["guidance"])


@router.post("/act")
async def choose_action(
    body: ActRequest, settings: SettingsDep, models: ModelsDep, telemetry: TelemetryDep
) -> ActResponse:
    """Draw candidates for the agent's state and return the one with the highest Q."""
    started = perf_counter()
    models.check_policy(body.policy)
    scorer = models.q_model(body.q_model)
    history = to_history(body.messages, most=settings.max_history_messages)
    if not 1 <= body.num_candidates <= settings.max_candidates:
        raise InvalidCandidatesError(
            f"num_candidates is {body.num_candidates}; ask for 1 to {settings.max_candidates}"
        )
    try:
        async with asyncio.timeout(settings.timeout_s):
            decision = await act(
                history,
                models.policy.model,
                scorer.model,
                num_candidates=body.num_candidates,
                sampling=_sampling(body),
            )
    except TimeoutError as error:
        raise ScorerUnavailableError(
            f"no decision within {settings.timeout_s} s; ask for fewer candidates or try later"
        ) from error
    _measure(telemetry, decision)
    total_ms = (perf_counter() - started) * 1e3
    return _response(decision, models.policy.name, scorer.name, total_ms)


def _sampling(body: ActRequest) -> Sampling:
    return Sampling(
        temperature=body.temperature,
        max_tokens=body.max_tokens,
        seed=body.seed,
        first_greedy=body.greedy_candidate,
    )


def _measure(telemetry: Telemetry, decision: Decision) -> None:
    telemetry.stage_seconds.labels("sample").observe(decision.timings.sample_ms / 1e3)
    telemetry.stage_seconds.labels("score").observe(decision.timings.score_ms / 1e3)
    telemetry.candidates.observe(decision.distinct_candidates)
    usage = decision.usage
    telemetry.count_tokens(
        completion=usage.completion_tokens, scored=usage.scored_tokens, cached=usage.cached_tokens
    )


def _response(decision: Decision, policy: str, q_model: str, total_ms: float) -> ActResponse:
    usage, timings = decision.usage, decision.timings
    return ActResponse(
        action=decision.action.content,
        chosen=decision.chosen,
        reason=decision.reason,
        candidates=[
            ScoredCandidate(
                message=ChatMessage(role="assistant", content=candidate.message.content), q_value=q
            )
            for candidate, q in zip(decision.candidates, decision.q_values, strict=True)
        ],
        policy=policy,
        q_model=q_model,
        usage=Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            scored_tokens=usage.scored_tokens,
            cached_tokens=usage.cached_tokens,
        ),
        timings_ms=Timings(sample=timings.sample_ms, score=timings.score_ms, total=total_ms),
    )
