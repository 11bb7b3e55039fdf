"""Guided steps, for every route that draws candidates."""

from collections import Counter
from dataclasses import dataclass, replace
from time import perf_counter

from qnet.decision.deadline import Deadline
from qnet.decision.decide import Decision, Guidance
from qnet.decision.guide import Perturbation, guide
from qnet.decision.perturbation import Paraphraser
from qnet.errors import InvalidCandidatesError, InvalidRequestError, MalformedHistoryError
from qnet.policies.session import SessionPolicy
from qnet.types import AsyncScorer, History, Policy, Sampling, ScoreRequest, ScoreResult
from server.context.request_context import upstream_session
from server.episodes.service import Episodes
from server.episodes.state import Episode, Offer
from server.guidance.readable_view import ReadableView, ViewScorer
from server.messages.schemas import StepOptions
from server.observability.metered import MeteredPolicy
from server.observability.metrics import Metrics
from server.q_models.build import Models, ServedPolicy
from server.q_models.registry import QModelLease
from server.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class GuidedStepRequest:
    """A validated request for an action.

    Attributes:
        num_candidates: M.
        n: number of candidates that the caller wants, best first.
        unreadable: why Q models cannot read this history as it is (the policy can); None if they
            can.
        view: what Q models can read of such a history; None if they can read nothing of it.
    """

    policy: ServedPolicy
    history: History
    sampling: Sampling
    num_candidates: int
    options: StepOptions
    n: int = 1
    unreadable: MalformedHistoryError | None = None
    view: ReadableView | None = None

    @property
    def blind(self) -> bool:
        """True if no Q model can judge candidates for this history."""
        return self.unreadable is not None and self.view is None


@dataclass(frozen=True, slots=True)
class GuidedStepResult:
    """The decision of a guided step, its models, its duration and its episode.

    Attributes:
        judge: the Q model is a judge.
    """

    decision: Decision
    policy: str
    q_model: str
    q_model_version: str
    total_ms: float
    episode_id: str | None = None
    judge: bool = False


@dataclass(frozen=True, slots=True)
class GuidedStepService:
    """Takes guided steps, records them in their episodes and counts them in the metrics.

    Attributes:
        session_id: the episode of steps whose options name none; from the URL or `X-Session-ID`.
    """

    settings: Settings
    models: Models
    episodes: Episodes
    paraphraser: Paraphraser | None
    metrics: Metrics
    deadline: Deadline
    session_id: str | None = None

    def check_num_candidates(self, num_candidates: int) -> None:
        """Refuse an M that is out of range.

        Raises:
            InvalidCandidatesError: it is below 1 or above the limit.
        """
        most = self.settings.max_candidates
        if not 1 <= num_candidates <= most:
            raise InvalidCandidatesError(
                f"num_candidates is {num_candidates}; ask for 1 to {most} (QGUIDE_MAX_CANDIDATES)"
            )

    async def take(self, asked: GuidedStepRequest) -> GuidedStepResult:
        """Draw candidates, score them and choose one.

        Raises:
            QGuideError: no action could be chosen; see `qnet.decision.guide.guide`.
            EpisodeClosedError: the episode has ended.
        """
        started = perf_counter()
        wanted = asked.options.adaptive
        self.check_num_candidates(asked.num_candidates)
        asked, warnings = self._with_a_choice(self._in_episode(asked))
        options = asked.options
        episode = await self.episodes.begin_step(options.episode_id)
        # Resolved before drawing and held to the end, so that no answer mixes two versions.
        with self.models.q_models.hold(options.q_model, episode_id=options.episode_id) as q_model:
            asked = _comparable(asked, q_model, adaptive_wanted=bool(wanted))
            guidance = self._guidance(asked, episode, q_model.id)
            perturbation = self._perturbation(asked)
            decision = await guide(
                asked.history,
                self._policy(asked),
                _scorer_of(asked, q_model),
                guidance,
                perturbation=perturbation,
                deadline=self.deadline,
            )
            decision = replace(decision, warnings=(*warnings, *decision.warnings))
            self._measure(decision, q_model.id)
        total_ms = (perf_counter() - started) * 1e3
        await self._remember(asked, decision, q_model, total_ms)
        return GuidedStepResult(
            decision,
            asked.policy.name,
            q_model.name,
            q_model.version,
            total_ms,
            episode_id=options.episode_id,
            judge=q_model.judge is not None,
        )

    def _in_episode(self, asked: GuidedStepRequest) -> GuidedStepRequest:
        """The request with its episode, and with adaptive M where the operator wants it there."""
        options = asked.options
        episode_id = self.session_id if options.episode_id is None else options.episode_id
        adaptive = options.adaptive
        if adaptive is None:
            adaptive = self.settings.adaptive and episode_id is not None
        settled = {"episode_id": episode_id, "adaptive": adaptive}
        return replace(asked, options=options.model_copy(update=settled))

    def _with_a_choice(self, asked: GuidedStepRequest) -> tuple[GuidedStepRequest, tuple[str, ...]]:
        """The request so that its candidates can differ, and warnings of what was changed.

        At temperature 0 all candidates are equal, and an upstream charges for each of them. Those
        of paraphrases are not, as far as there are any: see `Perturbation.repeats_at`.
        """
        warnings = asked.view.warnings if asked.view else ()
        greedy = asked.sampling.temperature == 0 and not asked.options.perturb and not asked.blind
        if not greedy or asked.num_candidates == 1:
            return asked, warnings
        warmer = self.settings.guidance_temperature
        if not warmer:
            said = f"temperature is 0, at which candidates are equal; {asked.n} drawn"
            return replace(asked, num_candidates=asked.n), (*warnings, said)
        said = (
            f"temperature is 0, at which candidates are equal; the first was drawn so and the "
            f"others at {warmer:g} (QGUIDE_GUIDANCE_TEMPERATURE)"
        )
        sampling = replace(asked.sampling, temperature=warmer, first_greedy=True)
        return replace(asked, sampling=sampling), (*warnings, said)

    def _policy(self, asked: GuidedStepRequest) -> Policy:
        """The policy; an upstream's router gets its draws, and no judge's requests, by episode."""
        session = upstream_session(asked.options.episode_id or "")
        policy = SessionPolicy(asked.policy.model, session)
        return MeteredPolicy(policy, self.metrics, stage="sample")

    def _guidance(
        self, asked: GuidedStepRequest, episode: Episode | None, q_model: str
    ) -> Guidance:
        options = asked.options
        blind = asked.blind
        previous_q = _previous_q(options, asked.history, episode, q_model)
        return Guidance(
            num_candidates=asked.n if blind else asked.num_candidates,
            sampling=asked.sampling,
            rise_over=None if blind else previous_q,
            batch=self.settings.adaptive_batch,
            at_least=asked.n,
            always_score=bool(options.adaptive) or blind,
            fallback="first" if blind else options.fallback or self.settings.fallback,
        )

    def _perturbation(self, asked: GuidedStepRequest) -> Perturbation | None:
        if not asked.options.perturb:
            return None
        if self.paraphraser is None:
            raise InvalidRequestError(
                "perturb needs a paraphraser, and this server has none; leave perturb out or set "
                "QGUIDE_PARAPHRASER"
            )
        markers = (*self.settings.task_markers, *asked.policy.task_markers)
        return Perturbation(
            self.paraphraser,
            asked.options.task,
            markers,
            repeats_at=None if asked.blind else self.settings.guidance_temperature,
        )

    async def _remember(
        self,
        asked: GuidedStepRequest,
        decision: Decision,
        q_model: QModelLease,
        total_ms: float,
    ) -> None:
        offer = Offer(
            at=len(asked.history),
            q_values={candidate.message.text: q for candidate, q in decision.scored_candidates},
            chosen=decision.action.text,
            q_model=q_model.id,
            policy=asked.policy.name,
            completion_tokens=decision.usage.completion_tokens,
            counts=Counter(candidate.message.text for candidate in decision.candidates),
            asked=asked.options.q_model or "",
            reason=decision.reason,
            duration_ms=total_ms,
            judge=q_model.judge is not None,
            ranked=q_model.ranks,
        )
        await self.episodes.end_step(
            asked.options.episode_id,
            asked.history,
            offer,
            candidates=(candidate.message for candidate, _ in decision.scored_candidates),
            unreadable=str(asked.unreadable or ""),
        )

    def _measure(self, decision: Decision, q_model: str) -> None:
        metrics = self.metrics
        metrics.draws_saved.inc(decision.draws_saved)
        if decision.unguided is not None:
            metrics.unguided.labels(q_model).inc()
        metrics.candidates.observe(decision.distinct_candidates)


def _scorer_of(asked: GuidedStepRequest, q_model: QModelLease) -> AsyncScorer:
    """The Q model as it reads this history."""
    if asked.unreadable is None:
        return q_model.scorer
    if asked.view is None:
        return UnreadableHistoryScorer(q_model.name, asked.unreadable)
    return ViewScorer(q_model.scorer, asked.view)


class UnreadableHistoryScorer:
    """Stand-in for a Q model when the history cannot be read; always raises."""

    def __init__(self, name: str, flaw: MalformedHistoryError) -> None:
        self.name = name
        self._flaw = flaw

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Raise the error of the history.

        Raises:
            MalformedHistoryError: always.
        """
        raise self._flaw


def _comparable(
    asked: GuidedStepRequest, q_model: QModelLease, *, adaptive_wanted: bool
) -> GuidedStepRequest:
    """The request without adaptive M if its Q-values are places in the order of one step.

    Raises:
        InvalidRequestError: the caller asked for it; the operator's default is left out.
    """
    if not q_model.ranks or not asked.options.adaptive:
        return asked
    if adaptive_wanted:
        raise InvalidRequestError(
            f"adaptive compares Q with the previous step's, but {q_model.id} is a judge that ranks "
            "the candidates of one step; leave adaptive out, or use a judge with the mode 'score'"
        )
    return replace(asked, options=asked.options.model_copy(update={"adaptive": False}))


def _previous_q(
    options: StepOptions, history: History, episode: Episode | None, q_model: str
) -> float | None:
    """The Q that adaptive M has to exceed; None at an episode's first step."""
    if not options.adaptive:
        return None
    if options.previous_q is None and options.episode_id is None:
        raise InvalidRequestError(
            "adaptive compares Q with the previous step's, but neither episode_id nor previous_q "
            "is given; send one of them"
        )
    if options.previous_q is None and episode is not None:
        return episode.previous_q(history, q_model=q_model)
    return options.previous_q
