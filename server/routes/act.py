"""POST /v1/act, /v1/score and /v1/score/batch: Q of drawn candidates, or of the caller's own.

vLLM's clients also call /v1/score, in vLLM's format, which its fields distinguish from ours.
"""

from time import perf_counter
from typing import Any

from fastapi import APIRouter

from qguide.qnet.errors import InvalidRequestError
from qguide.qnet.types import Sampling
from qguide.qnet.work import all_of
from qguide.server.guidance.score_step import Scored, ScoringService
from qguide.server.guidance.step_types import GuidedStepRequest, GuidedStepResult
from qguide.server.http.bodies import BodyRoute
from qguide.server.own_bodies.answers import (
    ActResponse,
    DrawnMessage,
    Score,
    ScoreBatchResponse,
    ScoredCandidate,
    ScoredItem,
    ScoreResponse,
    ScoreTimings,
    ScoreUsage,
    Usage,
    Window,
    verdict_fields,
)
from qguide.server.own_bodies.schemas import ActRequest, ScoreBatchBody, ScoreItem, ScoreRequestBody
from qguide.server.q_models.threaded import QModelLease
from qguide.server.rerank.vllm import EitherScoreRequest, PairScoreRequest, PairScoreResponse
from qguide.server.routes.dependencies import ScoringDep, StepperDep
from qguide.server.routes.rerank import score_pairs

router = APIRouter(prefix="/v1", tags=["guidance"], route_class=BodyRoute)


@router.post("/act")
async def choose_action(body: ActRequest, stepper: StepperDep) -> ActResponse:
    """Draw candidates for the agent's state and return the best one."""
    asked = GuidedStepRequest(
        policy=stepper.models.find_policy(body.policy),
        history=stepper.history(body.messages),
        sampling=Sampling(
            temperature=body.temperature,
            max_tokens=body.max_tokens,
            seed=body.seed,
            first_greedy=body.greedy_candidate and body.temperature is not None,
        ),
        num_candidates=body.num_candidates,
        options=body,
    )
    return _answer(await stepper.take(asked))


def _answer(taken: GuidedStepResult) -> ActResponse:
    decision, usage = taken.decision, taken.decision.usage
    return ActResponse(
        action=decision.action.text,
        candidates=[
            ScoredCandidate(
                message=DrawnMessage.of(candidate.message),
                q_value=q,
                prior=decision.shares[index],
                posterior=decision.posterior[index] if decision.posterior else None,
                policy=candidate.policy or None,
                **verdict_fields(decision.verdicts[index] if decision.verdicts else None),
            )
            for index, (candidate, q) in enumerate(decision.scored_candidates)
        ],
        usage=Usage.of(
            computed=usage.scored_tokens,
            cached=usage.cached_tokens,
            upstream=usage.upstream,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            threshold_tokens=usage.below_threshold.tokens,
            paraphrase_tokens=usage.paraphrasing.completion_tokens,
            cached_prompt_tokens=usage.cached_prompt_tokens,
        ),
        **taken.told,
    )


@router.post("/score")
async def score_candidates(body: EitherScoreRequest, scoring: ScoringDep) -> ScoreResponse | PairScoreResponse:
    """Score the caller's own candidates; nothing is drawn."""
    if isinstance(body, PairScoreRequest):
        return await score_pairs(body, scoring)
    return await _score(body, scoring)


@router.post("/score/batch")
async def score_batch(body: ScoreBatchBody, scoring: ScoringDep) -> ScoreBatchResponse:
    """Score several histories with one version of a Q model; all of them, or none."""
    most = scoring.settings.max_score_items
    if not 1 <= len(body.items) <= most:
        raise InvalidRequestError(f"items has {len(body.items)} entries; send 1 to {most} (QGUIDE_MAX_SCORE_ITEMS)")
    started = perf_counter()
    with await scoring.hold(body.q_model, body.episode_id) as q_model:
        scored = await all_of(
            [_score_item(index, item, q_model, scoring, body) for index, item in enumerate(body.items)],
            at_once=scoring.settings.max_batch,
        )
    known = perf_counter()
    return ScoreBatchResponse(
        items=[ScoredItem(**_shown(one)) for one in scored],
        **q_model.model.named,
        timings_ms=ScoreTimings(score=max(one.score_ms for one in scored), total=(known - started) * 1e3),
    )


async def _score(body: ScoreRequestBody, scoring: ScoringService) -> ScoreResponse:
    started = perf_counter()
    q_model, scored = await scoring.step(
        scoring.history(body.messages),
        scoring.drawn_candidates(body),
        q_model=body.q_model,
        episode_id=body.episode_id,
        earned=body.earned,
        long_history=scoring.long_history(body.long_history),
        selection=body,
    )
    return ScoreResponse(
        **_shown(scored),
        **q_model.model.named,
        timings_ms=ScoreTimings(score=scored.score_ms, total=(perf_counter() - started) * 1e3),
    )


async def _score_item(
    index: int, item: ScoreItem, q_model: QModelLease, scoring: ScoringService, body: ScoreBatchBody
) -> Scored:
    try:
        return await scoring.score(
            scoring.history(item.messages),
            scoring.drawn_candidates(item),
            q_model,
            long_history=scoring.long_history(body.long_history),
            selection=body,
        )
    except InvalidRequestError as error:
        raise type(error)(f"items[{index}]: {error}") from error


def _shown(scored: Scored) -> dict[str, Any]:
    result, choice = scored.result, scored.selection
    return {
        "scores": [
            Score(
                index=i,
                q_value=q,
                prior=scored.prior[i] if scored.prior else None,
                posterior=choice.posterior[i] if choice.posterior else None,
                **verdict_fields(result.verdicts[i] if result.verdicts else None),
            )
            for i, q in enumerate(result.q_values)
        ],
        "tau": scored.tau,
        "chosen": choice.chosen,
        "reason": choice.reason,
        "unguided_reason": scored.unguided_reason,
        "domain_distance": result.distance,
        "window": Window.of(result.window),
        "usage": ScoreUsage.of(computed=result.computed_tokens, cached=result.cached_tokens, upstream=result.upstream),
    }
