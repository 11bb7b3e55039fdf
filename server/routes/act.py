"""POST /v1/act: draw up to M candidates, score them, return the best."""

import asyncio
from time import perf_counter

from fastapi import APIRouter

from qnet.errors import InvalidCandidatesError, InvalidRequestError, ScorerUnavailableError
from qnet.guidance import Guidance, Guided, guide
from qnet.perturbation import Paraphraser
from qnet.types import History, Policy, Sampling
from server.dependencies import (
    EpisodesDep,
    ModelsDep,
    ParaphraserDep,
    SettingsDep,
    TelemetryDep,
)
from server.episodes.state import Episode
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
    episodes: EpisodesDep,
    paraphraser: ParaphraserDep,
    telemetry: TelemetryDep,
) -> ActResponse:
    """Draw candidates for the agent's state and return the one with the highest Q."""
    started = perf_counter()
    models.check_policy(body.policy)
    episode = await episodes.begin_step(body.episode_id)
    # Found before anything is drawn and held to the end: no answer mixes two versions.
    with models.q_models.hold(body.q_model, episode_id=body.episode_id) as q_model:
        history = to_history(body.messages, most=settings.max_history_messages)
        guidance = _guidance(body, settings, history, episode, q_model.id, paraphraser)
        guided = await _decide(history, models.policy.model, q_model, guidance, settings)
        _measure(telemetry, guided, q_model.id)
    decision = guided.decision
    await episodes.end_step(
        body.episode_id,
        history,
        q_values={
            candidate.message.content: q
            for candidate, q in zip(decision.candidates, decision.q_values, strict=True)
        },
        chosen=decision.action.content,
        q_model=q_model.id,
        policy=models.policy.name,
        completion_tokens=decision.usage.completion_tokens,
    )
    total_ms = (perf_counter() - started) * 1e3
    return _response(guided, models.policy.name, q_model, total_ms)


def _guidance(
    body: ActRequest,
    settings: Settings,
    history: History,
    episode: Episode | None,
    q_model: str,
    paraphraser: Paraphraser | None,
) -> Guidance:
    if not 1 <= body.num_candidates <= settings.max_candidates:
        raise InvalidCandidatesError(
            f"num_candidates is {body.num_candidates}; ask for 1 to {settings.max_candidates}"
        )
    if body.perturb and paraphraser is None:
        raise InvalidRequestError(
            "perturb needs a policy that paraphrases, and this server has none; set "
            "QGUIDE_PARAPHRASER"
        )
    return Guidance(
        num_candidates=body.num_candidates,
        sampling=_sampling(body),
        rise_over=_previous_q(body, history, episode, q_model) if body.adaptive else None,
        paraphraser=paraphraser if body.perturb else None,
        task=body.task,
        batch=settings.adaptive_batch,
    )


def _previous_q(
    body: ActRequest, history: History, episode: Episode | None, q_model: str
) -> float | None:
    """What adaptive M has to rise over; None at an episode's first step."""
    if body.previous_q is None and body.episode_id is None:
        raise InvalidRequestError(
            "adaptive draws until Q rises over the previous step's; give episode_id or previous_q"
        )
    if body.previous_q is None and episode is not None:
        return episode.previous_q(history, q_model=q_model)
    return body.previous_q


async def _decide(
    history: History, policy: Policy, q_model: Held, guidance: Guidance, settings: Settings
) -> Guided:
    try:
        async with asyncio.timeout(settings.timeout_s):
            return await guide(history, policy, q_model.scorer, guidance)
    except TimeoutError as error:
        raise ScorerUnavailableError(
            f"no decision within {settings.timeout_s} s; ask for fewer candidates or try later"
        ) from error


def _sampling(body: ActRequest) -> Sampling:
    return Sampling(
        temperature=body.temperature,
        max_tokens=body.max_tokens,
        seed=body.seed,
        first_greedy=body.greedy_candidate,
    )


def _measure(telemetry: Telemetry, guided: Guided, q_model: str) -> None:
    decision = guided.decision
    telemetry.draws_saved.inc(guided.draws_saved)
    if guided.paraphrase_ms:
        telemetry.stage_seconds.labels("paraphrase").observe(guided.paraphrase_ms / 1e3)
    telemetry.stage_seconds.labels("sample").observe(decision.timings.sample_ms / 1e3)
    telemetry.stage_seconds.labels("score").observe(decision.timings.score_ms / 1e3)
    telemetry.candidates.observe(decision.distinct_candidates)
    usage = decision.usage
    telemetry.completion_tokens.inc(usage.completion_tokens)
    telemetry.count_scored(q_model, computed=usage.scored_tokens, cached=usage.cached_tokens)


def _response(guided: Guided, policy: str, q_model: Held, total_ms: float) -> ActResponse:
    decision = guided.decision
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
        draws_saved=guided.draws_saved,
        perturbed=guided.perturbed,
        warnings=list(guided.warnings),
        policy=policy,
        q_model=q_model.name,
        q_model_version=q_model.version,
        usage=Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            paraphrase_tokens=guided.paraphrase_tokens,
            scored_tokens=usage.scored_tokens,
            cached_tokens=usage.cached_tokens,
        ),
        timings_ms=Timings(
            sample=timings.sample_ms,
            paraphrase=guided.paraphrase_ms,
            score=timings.score_ms,
            total=total_ms,
        ),
    )
