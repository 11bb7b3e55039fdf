"""POST /v1/act: draw M candidates, score them, return the best."""

from time import perf_counter

from fastapi import APIRouter

from qnet.agent import AsyncScorer, Decision, act
from qnet.errors import InvalidCandidatesError
from qnet.types import Policy, Sampling
from server.deadline import Deadline, DeadlineDep
from server.dependencies import ModelsDep, SettingsDep, TelemetryDep
from server.history import to_history
from server.q_models import Held
from server.schemas import (
    ActRequest,
    ActResponse,
    ChatMessage,
    ScoredCandidate,
    Timings,
    Usage,
)
from server.settings import Settings
from server.telemetry import Telemetry

router = APIRouter(prefix="/v1", tags=["guidance"])


@router.post("/act")
async def choose_action(
    body: ActRequest,
    settings: SettingsDep,
    models: ModelsDep,
    telemetry: TelemetryDep,
    deadline: DeadlineDep,
) -> ActResponse:
    """Draw candidates for the agent's state and return the one with the highest Q."""
    started = perf_counter()
    models.check_policy(body.policy)
    # Found before anything is drawn and held to the end: no answer mixes two versions.
    with models.q_models.hold(body.q_model, episode_id=body.episode_id) as q_model:
        decision = await _decide(body, settings, models.policy.model, q_model.scorer, deadline)
        _measure(telemetry, decision, q_model.id)
    total_ms = (perf_counter() - started) * 1e3
    return _response(decision, models.policy.name, q_model, total_ms)


async def _decide(
    body: ActRequest, settings: Settings, policy: Policy, scorer: AsyncScorer, deadline: Deadline
) -> Decision:
    history = to_history(
        body.messages, most=settings.max_history_messages, most_bytes=settings.max_text_bytes
    )
    if not 1 <= body.num_candidates <= settings.max_candidates:
        raise InvalidCandidatesError(
            f"num_candidates is {body.num_candidates}; ask for 1 to {settings.max_candidates}"
        )
    async with deadline.kept():
        return await act(
            history,
            policy,
            scorer,
            num_candidates=body.num_candidates,
            sampling=_sampling(body),
        )


def _sampling(body: ActRequest) -> Sampling:
    return Sampling(
        temperature=body.temperature,
        max_tokens=body.max_tokens,
        seed=body.seed,
        first_greedy=body.greedy_candidate,
    )


def _measure(telemetry: Telemetry, decision: Decision, q_model: str) -> None:
    telemetry.stage_seconds.labels("sample").observe(decision.timings.sample_ms / 1e3)
    telemetry.stage_seconds.labels("score").observe(decision.timings.score_ms / 1e3)
    telemetry.candidates.observe(decision.distinct_candidates)
    usage = decision.usage
    telemetry.count_drawn(prompt=usage.prompt_tokens, completion=usage.completion_tokens)
    telemetry.count_scored(q_model, computed=usage.scored_tokens, cached=usage.cached_tokens)


def _response(decision: Decision, policy: str, q_model: Held, total_ms: float) -> ActResponse:
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
        q_model=q_model.name,
        q_model_version=q_model.version,
        usage=Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            scored_tokens=usage.scored_tokens,
            cached_tokens=usage.cached_tokens,
        ),
        timings_ms=Timings(sample=timings.sample_ms, score=timings.score_ms, total=total_ms),
    )
