"""POST /v1/act: draw up to M candidates, score them, return the best."""

from fastapi import APIRouter

from qguide.qnet.decision.decision import Decision
from qguide.qnet.types import Sampling
from qguide.server.guidance.step_types import GuidedStepRequest, GuidedStepResult
from qguide.server.http.bodies import BodyRoute
from qguide.server.own_bodies.answers import ActResponse, DrawnMessage, ScoredCandidate, Usage, verdict_fields
from qguide.server.own_bodies.schemas import ActRequest
from qguide.server.routes.dependencies import StepperDep

router = APIRouter(prefix="/v1", tags=["guidance"], route_class=BodyRoute)


@router.post("/act")
async def choose_action(body: ActRequest, stepper: StepperDep) -> ActResponse:
    """Draw candidates for the agent's state and return the best one."""
    asked = GuidedStepRequest(
        policy=stepper.models.find_policy(body.policy),
        history=stepper.history(body.messages),
        sampling=_sampling(body),
        num_candidates=body.num_candidates,
        options=body,
    )
    return _response(await stepper.take(asked))


def _sampling(body: ActRequest) -> Sampling:
    return Sampling(
        temperature=body.temperature,
        max_tokens=body.max_tokens,
        seed=body.seed,
        first_greedy=body.greedy_candidate and body.temperature is not None,
    )


def _candidates(decision: Decision) -> list[ScoredCandidate]:
    """All candidates in the order in which they were drawn."""
    return [
        ScoredCandidate(
            message=DrawnMessage.of(candidate.message),
            q_value=q,
            prior=decision.shares[index],
            posterior=decision.posterior[index] if decision.posterior else None,
            policy=candidate.policy or None,
            **verdict_fields(decision.verdicts[index] if decision.verdicts else None),
        )
        for index, (candidate, q) in enumerate(decision.scored_candidates)
    ]


def _response(taken: GuidedStepResult) -> ActResponse:
    usage = taken.decision.usage
    return ActResponse(
        action=taken.decision.action.text,
        candidates=_candidates(taken.decision),
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
