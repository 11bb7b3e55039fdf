"""One guided step with everything that can be asked for: perturbation and adaptive M.

What every endpoint that draws candidates calls; `qnet.decision.act.act` is its plain core.
"""

from dataclasses import dataclass
from time import perf_counter

from qnet.decision.act import AsyncScorer, Decision, Fallback, act
from qnet.decision.adaptive import DEFAULT_BATCH, act_adaptively
from qnet.decision.deadline import NO_DEADLINE, Deadline
from qnet.decision.perturbation import Paraphraser, PerturbedPolicy, find_task
from qnet.types import NOTHING, History, Policy, Sampling, TokenUsage


@dataclass(frozen=True, slots=True)
class Guidance:
    """How one step is to be guided.

    Attributes:
        num_candidates: M; with `rise_over` the most that are drawn.
        at_least: candidates that are drawn however high the Q.
        always_score: read Q also where there is nothing to choose between: the next step has to
            rise over it.
        rise_over: draw only until Q is above this, the previous step's Q; None draws all M.
        paraphraser: draws the candidates after the first under its paraphrases; None: not.
        task: the task's description, if it is not where `find_task` looks for it.
        batch: candidates drawn at a time where M is adaptive.
        fallback: what becomes of it where no Q can be given.
        deadline: for all of it.
    """

    num_candidates: int
    sampling: Sampling
    rise_over: float | None = None
    paraphraser: Paraphraser | None = None
    task: str | None = None
    batch: int = DEFAULT_BATCH
    at_least: int = 1
    always_score: bool = False
    fallback: Fallback = "error"
    deadline: Deadline = NO_DEADLINE


@dataclass(frozen=True, slots=True)
class Guided:
    """The decision, and what became of what was asked for.

    Attributes:
        draws_saved: candidates that adaptive M did without.
        perturbed: candidates that were drawn under a paraphrase.
        paraphrasing: what the paraphrases cost; nothing where they were known.
        warnings: what was asked for and could not be had.
    """

    decision: Decision
    draws_saved: int = 0
    perturbed: int = 0
    paraphrasing: TokenUsage = NOTHING
    paraphrase_ms: float = 0.0
    warnings: tuple[str, ...] = ()


async def guide(
    history: History, policy: Policy, scorer: AsyncScorer, guidance: Guidance
) -> Guided:
    """Draw, score after the true history, select.

    Raises:
        InvalidCandidatesError: M is below 1.
        InvalidRequestError: `task` is not in the first user message.
        HistoryTooLongError: the history does not fit the policy or the Q model.
        ScorerUnavailableError: no Q can be given, or not in time.
        UpstreamError: the policy's upstream failed.
    """
    if guidance.paraphraser is None:
        decision = await _decide(history, policy, scorer, guidance)
        return Guided(decision, draws_saved=_saved(decision, guidance))
    started = perf_counter()
    place = find_task(history, task=guidance.task)
    async with guidance.deadline.enforce():
        paraphrases = await guidance.paraphraser.paraphrase(
            place.text(history), n=max(guidance.num_candidates - 1, 0)
        )
    paraphrased = perf_counter()
    perturbed = PerturbedPolicy(policy, place, paraphrases.texts)
    decision = await _decide(history, perturbed, scorer, guidance)
    return Guided(
        decision,
        draws_saved=_saved(decision, guidance),
        perturbed=perturbed.perturbed,
        paraphrasing=paraphrases.spent,
        paraphrase_ms=(paraphrased - started) * 1e3,
        warnings=(*paraphrases.warnings, *perturbed.warnings),
    )


async def _decide(
    history: History, policy: Policy, scorer: AsyncScorer, guidance: Guidance
) -> Decision:
    if guidance.rise_over is None:
        return await act(
            history,
            policy,
            scorer,
            num_candidates=guidance.num_candidates,
            sampling=guidance.sampling,
            fallback=guidance.fallback,
            deadline=guidance.deadline,
            always_score=guidance.always_score,
        )
    return await act_adaptively(
        history,
        policy,
        scorer,
        num_candidates=guidance.num_candidates,
        previous_q=guidance.rise_over,
        sampling=guidance.sampling,
        batch=guidance.batch,
        at_least=guidance.at_least,
        fallback=guidance.fallback,
        deadline=guidance.deadline,
    )


def _saved(decision: Decision, guidance: Guidance) -> int:
    return guidance.num_candidates - len(decision.candidates)
