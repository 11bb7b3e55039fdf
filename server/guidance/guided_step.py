"""Guided steps, for every route that draws candidates."""

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter

from qguide.qnet.decision.deadline import Deadline
from qguide.qnet.decision.decide import Fallback, Guidance
from qguide.qnet.decision.decision import Decision
from qguide.qnet.decision.guide import Perturbation, guide
from qguide.qnet.decision.perturbation import Paraphraser
from qguide.qnet.errors import (
    InvalidCandidatesError,
    InvalidRequestError,
    UnknownModelError,
)
from qguide.qnet.policies.session import SessionPolicy
from qguide.qnet.support.concurrency import one_group
from qguide.qnet.types import AsyncScorer, Policy, ScoreRequest, ScoreResult
from qguide.server.context.request_context import upstream_session
from qguide.server.episodes.service import Episodes
from qguide.server.episodes.state import Episode, Offer
from qguide.server.guidance import learning_step
from qguide.server.guidance.adaptive import comparable, previous_q
from qguide.server.guidance.below_threshold import (
    action_policies,
    action_rows,
    require_not_stopped,
    threshold_of,
    threshold_settings,
)
from qguide.server.guidance.domain import DomainScorer, domain_of
from qguide.server.guidance.long_history import (
    STEP,
    LongHistoryScorer,
    fallback_of,
    long_history_mode,
    too_long_to_draw,
)
from qguide.server.guidance.read_ahead import reading_ahead
from qguide.server.guidance.readable_view import ViewScorer
from qguide.server.guidance.selection import selection_rule
from qguide.server.guidance.step_types import GuidedStepRequest, GuidedStepResult
from qguide.server.learning.cost import extra_of, step_cost
from qguide.server.learning.seat import Play
from qguide.server.learning.service import Learning
from qguide.server.observability.genai import record_draw, record_q_values, record_usage
from qguide.server.observability.metered import MeteredPolicy
from qguide.server.observability.metrics import Metrics
from qguide.server.q_models.build import Models
from qguide.server.q_models.policies import ServedPolicy
from qguide.server.q_models.served import QModelLease
from qguide.server.settings.settings import Settings
from qguide.server.settings.thresholds import ThresholdSettings


@dataclass(frozen=True, slots=True)
class GuidedStepService:
    """Takes guided steps, records them in their episodes and counts them in the metrics.

    Attributes:
        session_id: the episode of steps whose options name none; from the URL or `X-Session-ID`.
        outcome: ends the episode after the step; from `X-QGuide-Outcome`.
        learning: chooses the Q model of steps that name none; None: the server does not learn.
    """

    settings: Settings
    models: Models
    episodes: Episodes
    paraphraser: Paraphraser | None
    metrics: Metrics
    deadline: Deadline
    session_id: str | None = None
    agent_session: str = ""
    outcome: float | None = None
    learning: Learning | None = None

    def check_num_candidates(self, num_candidates: int) -> None:
        """Refuse an M that is out of range."""
        most = self.settings.max_candidates
        if not 1 <= num_candidates <= most:
            raise InvalidCandidatesError(
                f"num_candidates is {num_candidates}; ask for 1 to {most} (QGUIDE_MAX_CANDIDATES)"
            )

    async def take(self, asked: GuidedStepRequest) -> GuidedStepResult:
        """Draw candidates, score them and choose one.

        Raises:
            QGuideError: no action could be chosen; see `qguide.qnet.decision.guide.guide`.
            BelowThresholdError: no candidate is good enough, and the operator stops such steps.
            EpisodeClosedError: the episode has ended.
        """
        started = perf_counter()
        wanted = asked.options.adaptive
        self.check_num_candidates(asked.num_candidates)
        asked = await self._in_episode(asked)
        options = asked.options
        episode = await self.episodes.begin_step(
            options.episode_id, outcome=self.outcome, strict=not asked.agent_session
        )
        play = await learning_step.play_of(asked, episode, self.learning)
        # Resolved before drawing and held to the end, so that no answer mixes two versions.
        with self._held(asked, play) as q_model:
            asked = self._guidable(asked, q_model)
            asked = learning_step.exploring(asked, play)
            asked = comparable(asked, q_model, adaptive_wanted=bool(wanted))
            asked = await self._fitting(asked, q_model)
            asked, warnings = self._with_a_choice(asked)
            threshold = self._threshold(asked, q_model)
            guidance = replace(
                self._guidance(asked, episode, q_model), threshold=threshold_of(threshold)
            )
            perturbation = self._perturbation(asked)
            record_draw(
                self.metrics.tracing,
                model=asked.policy.upstream_model or asked.policy.name,
                num_candidates=guidance.num_candidates,
                sampling=asked.sampling,
                episode_id=options.episode_id,
            )
            with one_group(), self._reading(asked, q_model, guidance) as scorer:
                decision = await guide(
                    asked.history,
                    self._policy(asked),
                    scorer,
                    guidance,
                    perturbation=perturbation,
                    escalation=self._escalation(asked, threshold),
                    deadline=self.deadline,
                )
            decision = replace(decision, warnings=(*warnings, *decision.warnings))
            self._measure(decision, q_model.id)
        total_ms = (perf_counter() - started) * 1e3
        taken = GuidedStepResult(
            decision,
            asked.policy.name,
            q_model.name,
            q_model.version,
            total_ms,
            episode_id=options.episode_id,
            judge=q_model.judge is not None,
            action_policies=action_policies(decision, threshold, asked.policy.name),
        )
        if self.learning is not None and (asked.no_q_model or play.q_model):
            self.learning.spent(
                play, extra_of(decision, learning_step.prices_of(asked, self.settings))
            )
        await self._remember(asked, taken, q_model, play)
        require_not_stopped(decision, q_model)
        return taken

    def _held(self, asked: GuidedStepRequest, play: Play) -> AbstractContextManager[QModelLease]:
        """The Q model of the step, held until its end."""
        episode_id = asked.options.episode_id
        if play.q_model is not None:
            return self.models.q_models.lease(play.q_model, episode_id=episode_id)
        wanted = self.models.q_model_for(asked.policy, asked.options.q_model)
        return self.models.q_models.hold(wanted, episode_id=episode_id)

    def _reading(
        self, asked: GuidedStepRequest, q_model: QModelLease, guidance: Guidance
    ) -> AbstractContextManager[AsyncScorer]:
        """The Q model as it reads this history, which it may begin to read during the block.

        A policy in this process draws on the same device, so only an upstream leaves it idle.
        """
        scorer = self._scorer(asked, q_model)
        draws_elsewhere = asked.policy.upstream_model is not None
        scores = guidance.num_candidates > 1 or guidance.always_score
        if not (self.settings.read_ahead and draws_elsewhere and scores) or asked.blind:
            return nullcontext(scorer)
        history = asked.view.history if asked.view else asked.history
        return reading_ahead(q_model, history, scorer, self.metrics)

    async def _in_episode(self, asked: GuidedStepRequest) -> GuidedStepRequest:
        """The request with its episode, and with adaptive M where the operator wants it there.

        Agents ask for titles and summaries of their sessions, too: without tools, which is no step.
        """
        options = asked.options
        episode_id = self.session_id if options.episode_id is None else options.episode_id
        session = self.agent_session or asked.agent_session
        if episode_id is not None or not asked.has_tools:
            session = ""
        elif session:
            episode_id = await self.episodes.current(session)
        adaptive = options.adaptive
        if adaptive is None:
            adaptive = self.settings.adaptive and episode_id is not None
        settled = {"episode_id": episode_id, "adaptive": adaptive}
        return replace(asked, options=options.model_copy(update=settled), agent_session=session)

    async def _fitting(self, asked: GuidedStepRequest, q_model: QModelLease) -> GuidedStepRequest:
        """The request, blind if its history cannot be scored in any way that is allowed."""
        if asked.blind:
            return asked
        mode = long_history_mode(asked, self.settings)
        history = asked.view.history if asked.view else asked.history
        error = await too_long_to_draw(history, q_model, mode)
        if error and self._too_long(asked) == "error":
            raise error
        return replace(asked, too_long=error)

    def _guidable(self, asked: GuidedStepRequest, q_model: QModelLease) -> GuidedStepRequest:
        """The request, blind if there is no Q model."""
        if not q_model.refusal:
            return asked
        error = UnknownModelError(q_model.refusal)
        wanted = asked.options.fallback or self.settings.fallback
        if wanted == "error" and asked.num_candidates > 1:
            raise error
        return replace(asked, no_q_model=error)

    def _too_long(self, asked: GuidedStepRequest) -> Fallback:
        """The answer if a history is too long and no window of it is read."""
        mode = long_history_mode(asked, self.settings)
        return fallback_of(asked, self.settings) if mode == "window" else mode

    def _with_a_choice(self, asked: GuidedStepRequest) -> tuple[GuidedStepRequest, tuple[str, ...]]:
        """The request so that its candidates can differ, and warnings of what was changed.

        At temperature 0 all candidates are equal, and an upstream charges for each of them. Those
        of paraphrases are not, as far as there are any: see `Perturbation.repeats_at`.
        """
        warnings = (*asked.warnings, *(asked.view.warnings if asked.view else ()))
        greedy = asked.sampling.temperature == 0 and not asked.options.perturb and asked.chooses
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

    def _policy(self, asked: GuidedStepRequest, served: ServedPolicy | None = None) -> Policy:
        """The policy; an upstream's router gets its draws, and no judge's requests, by episode."""
        session = upstream_session(asked.options.episode_id or "")
        policy = SessionPolicy((served or asked.policy).model, session)
        return MeteredPolicy(policy, self.metrics, stage="sample")

    def _threshold(
        self, asked: GuidedStepRequest, q_model: QModelLease
    ) -> ThresholdSettings | None:
        """The threshold of this step; None if one candidate was asked for, or none can be scored.

        Steps with one candidate are what guided ones are compared with.
        """
        if asked.blind or asked.num_candidates == 1:
            return None
        return threshold_settings(self.settings.thresholds, q_model)

    def _escalation(
        self, asked: GuidedStepRequest, threshold: ThresholdSettings | None
    ) -> Policy | None:
        if threshold is None or not threshold.policy:
            return None
        return self._policy(asked, self.models.find_policy(threshold.policy))

    def _scorer(self, asked: GuidedStepRequest, q_model: QModelLease) -> AsyncScorer:
        """The Q model as it reads this history."""
        if asked.obstacle is not None:
            return ObstructedScorer(q_model.name, asked.obstacle)
        scorer: AsyncScorer = LongHistoryScorer(
            q_model, long_history_mode(asked, self.settings), STEP
        )
        if domain := domain_of(q_model, asked.options.out_of_domain, self.settings):
            scorer = DomainScorer(scorer, domain, self.metrics, q_model.id)
        return scorer if asked.view is None else ViewScorer(scorer, asked.view)

    def _guidance(
        self, asked: GuidedStepRequest, episode: Episode | None, q_model: QModelLease
    ) -> Guidance:
        options = asked.options
        blind = asked.blind
        before = previous_q(options, asked.history, episode, q_model.id)
        rule = selection_rule(options, self.settings, q_model, prior=options.prior)
        return Guidance(
            num_candidates=asked.num_candidates if asked.chooses else asked.n,
            sampling=asked.sampling,
            rise_over=None if blind else before,
            batch=self.settings.adaptive_batch,
            at_least=asked.n,
            always_score=bool(options.adaptive) or blind,
            fallback="first" if blind else fallback_of(asked, self.settings),
            too_long="first" if blind else self._too_long(asked),
            selection=rule.selection,
            tau=rule.tau,
            prior=rule.prior,
            explore=asked.explore,
            greedy_weight=rule.greedy_weight,
        )

    def _out_of_domain(
        self, asked: GuidedStepRequest, decision: Decision, q_model: QModelLease
    ) -> bool | None:
        """The domain's answer for the record; None where the Q model was not asked, or has none."""
        known = domain_of(q_model, asked.options.out_of_domain, self.settings) is not None
        answered = decision.out_of_domain or decision.q_values is not None
        return decision.out_of_domain if known and answered else None

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
            repeats_at=self.settings.guidance_temperature if asked.chooses else None,
        )

    async def _remember(
        self, asked: GuidedStepRequest, taken: GuidedStepResult, q_model: QModelLease, play: Play
    ) -> None:
        if asked.options.episode_id is None:
            return
        decision = taken.decision
        below = decision.below_threshold
        greedy = asked.sampling.first_is_greedy
        offer = Offer(
            at=len(asked.history),
            q_values={candidate.message.text: q for candidate, q in decision.scored_candidates},
            chosen=decision.action.text,
            q_model=q_model.id,
            policy=asked.policy.name,
            prompt_tokens=decision.usage.prompt_tokens,
            completion_tokens=decision.usage.completion_tokens,
            cost=step_cost(decision, learning_step.prices_of(asked, self.settings)),
            counts=Counter(candidate.message.text for candidate in decision.candidates),
            greedy=decision.candidates[0].message.text if greedy else "",
            asked=asked.options.q_model or "",
            reason=decision.reason,
            tau=decision.tau,
            duration_ms=taken.total_ms,
            judge=q_model.judge is not None,
            ranked=q_model.ranks,
            window=decision.window,
            threshold=below.below if below else None,
            actions=action_rows(decision, taken.action_policies),
            out_of_domain=self._out_of_domain(asked, decision, q_model),
            shadow=q_model.shadow,
            shadowed=await learning_step.shadowed(asked, decision, play, self.settings),
            arm=play.arm,
            propensity=None if play.arm is None else learning_step.propensity_of(decision),
        )
        await self.episodes.end_step(
            asked.options.episode_id,
            asked.history,
            offer,
            candidates=(candidate.message for candidate, _ in decision.scored_candidates),
            unreadable=str(asked.unreadable or ""),
            outcome=self.outcome,
            final=asked.has_tools and not decision.action.tool_calls,
            strict=not asked.agent_session,
        )

    def _measure(self, decision: Decision, q_model: str) -> None:
        metrics = self.metrics
        metrics.draws_saved.inc(decision.draws_saved)
        if decision.unguided is not None:
            metrics.unguided.labels(q_model).inc()
        if decision.window is not None:
            metrics.count_window(q_model, decision.window)
        if decision.below_threshold is not None:
            for action in decision.below_threshold.taken:
                metrics.count_threshold_action(q_model, action)
        metrics.candidates.observe(decision.distinct_candidates)
        record_usage(metrics.tracing, decision.usage)
        q_values = decision.q_values or ()
        record_q_values(metrics.tracing, q_values, chosen=decision.chosen, q_model=q_model)


class ObstructedScorer:
    """Stand-in for a Q model where there is none, or where it cannot read the history."""

    def __init__(self, name: str, obstacle: InvalidRequestError) -> None:
        self.name = name
        self._obstacle = obstacle

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Raise the obstacle."""
        raise self._obstacle
