"""Guided steps, for every route that draws candidates."""

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter

from qguide.qnet.decision.decision import Decision, Fallback, Guidance
from qguide.qnet.decision.guide import Perturbation, guide
from qguide.qnet.decision.perturbation import Paraphraser
from qguide.qnet.decision.threshold import Threshold
from qguide.qnet.errors import HistoryTooLongError, InvalidCandidatesError, InvalidRequestError, UnknownModelError
from qguide.qnet.types import Policy, Sampling
from qguide.qnet.work import current_outlet, one_group
from qguide.server.episodes.state import Offer, ServedEpisode
from qguide.server.guidance.learning_step import play_of, propensity_of, shadowed
from qguide.server.guidance.pooled import pooled, with_policies
from qguide.server.guidance.step_options import (
    Obstacle,
    StepScorer,
    domain_of,
    fallback_of,
    is_adaptive,
    least_read_of,
    long_history_mode,
    previous_q,
    selection_rule,
    threshold_settings,
    too_long_to_draw,
    until_of,
)
from qguide.server.guidance.step_types import (
    GuidedStepRequest,
    GuidedStepResult,
    RequestService,
    action_policies,
    action_rows,
    extra_of,
    priced,
    prices_of,
    require_not_stopped,
    stage_costs,
)
from qguide.server.learning.live_group import LearningStep
from qguide.server.observability.request_context import record_draw, record_q_values, record_usage, upstream_session
from qguide.server.q_models.served import MeteredPolicy, ServedPolicy, ServedQModel, kept_open
from qguide.server.q_models.threaded import QModelLease
from qguide.server.settings.thresholds import ThresholdSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedStepService(RequestService):
    """Takes guided steps, records them in their episodes and counts them in the metrics."""

    paraphraser: Paraphraser | None
    agent_session: str = ""

    def check_num_candidates(self, num_candidates: int) -> None:
        """Refuse an M that is out of range."""
        most = self.settings.max_candidates
        if not 1 <= num_candidates <= most:
            raise InvalidCandidatesError(
                f"num_candidates is {num_candidates}; ask for 1 to {most} (QGUIDE_MAX_CANDIDATES)"
            )

    async def take(self, asked: GuidedStepRequest) -> GuidedStepResult:
        """Draw candidates, score them and choose one."""
        started = perf_counter()
        if policies := asked.options.policies:
            if policies[0].n is None:  # else their n say how many
                self.check_num_candidates(asked.num_candidates)
            asked = await pooled(asked, self.models, self.settings, self.learning)
        self.check_num_candidates(asked.num_candidates)
        asked = await self._in_episode(asked)
        episode_id = asked.options.episode_id
        episode = await self.begin_step(episode_id, earned=asked.options.earned, strict=not asked.agent_session)
        play = await play_of(asked, episode, self.learning) if self.learning else LearningStep()
        # Resolved before drawing and held to the end, so that no answer mixes two versions.
        with kept_open(play.shadow), self._held(asked, play) as held:
            plan = await self._plan(asked, episode, play, held)
            decision = await self._decide(asked, plan)
            decision = self._with_prior_warning(decision, asked, plan, held.id)
            self._measure(decision, held.id)
            taken = GuidedStepResult(
                decision,
                asked.policy.name,
                held.model.named,
                (perf_counter() - started) * 1e3,
                episode_id=episode_id,
                action_policies=action_policies(decision, plan.threshold, asked.policy.name),
            )
            if pool := asked.policy.pool:
                taken = with_policies(taken, pool, self.settings)
            prices = prices_of(asked, plan.threshold, self.settings, held.model.upstream)
            taken = priced(taken, prices)
            for stage, cost in stage_costs(taken).items():
                self.metrics.cost.labels(held.id, stage).inc(max(0.0, cost))  # a difference of floats
            if self.learning is not None and (held.model.refusal or play.q_model):
                self.learning.spent(play, extra_of(decision, prices))
            await self._remember(asked, plan, taken, held, play)
            require_not_stopped(decision, held.model)
            return taken

    async def _decide(self, asked: GuidedStepRequest, plan: "_Plan") -> Decision:
        """Draw, score and choose as planned; the plan's warnings come first."""
        episode_id = asked.options.episode_id
        record_draw(
            self.metrics.tracing,
            model=asked.policy.upstream_model or asked.policy.name,
            num_candidates=plan.guidance.num_candidates,
            sampling=plan.guidance.sampling,
            episode_id=episode_id,
        )
        outlet = current_outlet()
        passes = outlet is not None and plan.draws_only and asked.policy.pool is None
        with one_group(), self._reading(asked, plan), outlet.opened() if outlet and passes else nullcontext():
            decision = await guide(
                asked.history,
                self._policy(asked.policy, episode_id),
                plan.scorer,
                plan.guidance,
                perturbation=plan.perturbation,
                escalation=plan.escalation,
                deadline=self.deadline,
            )
        return replace(decision, warnings=(*plan.warnings, *decision.warnings))

    async def _in_episode(self, asked: GuidedStepRequest) -> GuidedStepRequest:
        """The request with its episode.

        Agents ask for titles and summaries of their sessions, too: without tools, which is no step.
        """
        options = asked.options
        episode_id = self.session_id if options.episode_id is None else options.episode_id
        session = self.agent_session or asked.agent_session
        if episode_id is not None or not asked.has_tools:
            session = ""
        elif session:
            episode_id = await self.episodes.current(session)
        earned = options.earned if self.earned is None else self.earned
        options = options.model_copy(update={"episode_id": episode_id, "earned": earned})
        return replace(asked, options=options, agent_session=session)

    def _held(self, asked: GuidedStepRequest, play: LearningStep) -> AbstractContextManager[QModelLease]:
        episode_id = asked.options.episode_id
        if play.q_model is not None:
            return self.models.q_models.lease(play.q_model, episode_id=episode_id)
        wanted = self.models.q_model_for(asked.policy, asked.options.q_model)
        return self.models.q_models.hold(wanted, episode_id=episode_id)

    async def _plan(
        self, asked: GuidedStepRequest, episode: ServedEpisode | None, play: LearningStep, held: QModelLease
    ) -> "_Plan":
        options, q_model = asked.options, held.model
        obstacle = await self._obstacle(asked, q_model)
        adaptive = is_adaptive(options, q_model, in_episodes=self.settings.adaptive)
        # Where there is no Q model, learning may choose at random, or watch another version choose.
        learns = bool(q_model.refusal) and asked.num_candidates > asked.n
        explore = play.explore if learns and not play.spent else None
        watched = learns and not play.spent and play.shadow is not None
        chooses = obstacle is None or explore is not None or watched
        num_candidates, sampling, warnings = self._with_a_choice(asked, chooses=chooses)
        if learns and play.spent:  # only what the agent asked for is drawn
            said = f"the budget of learning ({play.spent}) is spent, so {asked.n} drawn"
            warnings = (*warnings, said)
        before = previous_q(options, asked.history, episode, q_model.id) if adaptive else None
        rule = selection_rule(options, self.settings, q_model, prior=options.prior)
        threshold = None
        if obstacle is None and num_candidates > 1:  # single draws are what guided ones must beat
            threshold = threshold_settings(self.settings.thresholds, q_model)
        limit = Threshold(threshold.below, threshold.actions, threshold.num_candidates) if threshold else None
        return _Plan(
            guidance=Guidance(
                num_candidates=num_candidates if chooses else asked.n,
                sampling=sampling,
                rise_over=before if obstacle is None else None,
                until=until_of(options, q_model) if obstacle is None and explore is None else None,
                max_wait_s=options.max_wait_s,
                compares=q_model.ranks,
                batch=self.settings.adaptive_batch if adaptive or options.until_decided else num_candidates,
                at_least=asked.n,
                always_score=adaptive or obstacle is not None,
                fallback="first" if obstacle else fallback_of(asked, self.settings),
                too_long="first" if obstacle else self._too_long(asked),
                selection=rule.selection,
                tau=rule.tau,
                prior=rule.prior,
                explore=explore,
                greedy_weight=rule.greedy_weight,
                threshold=limit,
            ),
            scorer=self._scorer(asked, held, obstacle),
            perturbation=self._perturbation(asked, chooses=chooses),
            threshold=threshold,
            escalation=self._escalation(asked, threshold),
            warnings=warnings,
        )

    def _scorer(self, asked: GuidedStepRequest, held: QModelLease, obstacle: Obstacle | None) -> StepScorer:
        return StepScorer(
            held.name,
            held,
            self.metrics,
            obstacle=obstacle,
            view=asked.view,
            domain=domain_of(held.model, asked.options.out_of_domain, self.settings),
            long_history=long_history_mode(asked, self.settings),
            least_read=least_read_of(asked.options, self.settings),
        )

    def _escalation(self, asked: GuidedStepRequest, threshold: ThresholdSettings | None) -> Policy | None:
        if threshold is None or not threshold.policy:
            return None
        return self._policy(self.models.find_policy(threshold.policy), asked.options.episode_id)

    async def _obstacle(self, asked: GuidedStepRequest, q_model: ServedQModel) -> Obstacle | None:
        """Reason why no candidate can be scored after this history; None if they can.

        It is raised where the caller or the operator wants no fallback, before anything is drawn.
        """
        if q_model.refusal:
            error = UnknownModelError(q_model.refusal)
            wanted = asked.options.fallback or self.settings.fallback
            if wanted == "error" and asked.num_candidates > 1:
                raise error
            return error
        if asked.unreadable is not None and asked.view is None:
            return asked.unreadable
        mode = long_history_mode(asked, self.settings)
        least_read = least_read_of(asked.options, self.settings)
        too_long = await too_long_to_draw(asked.read_history, q_model, mode, least_read=least_read)
        if isinstance(too_long, HistoryTooLongError) and self._too_long(asked) == "error":
            raise too_long
        return too_long

    def _too_long(self, asked: GuidedStepRequest) -> Fallback:
        mode = long_history_mode(asked, self.settings)
        return fallback_of(asked, self.settings) if mode == "window" else mode

    def _with_a_choice(self, asked: GuidedStepRequest, *, chooses: bool) -> tuple[int, Sampling, tuple[str, ...]]:
        """M and the sampling by which candidates can differ, and warnings of what was changed.

        At temperature 0 all candidates are equal, and an upstream charges for each of them. Those of paraphrases are
        not, as far as there are any: see `Perturbation.repeats_at`.
        """
        m, sampling = asked.num_candidates, asked.sampling
        warnings = (*asked.warnings, *(asked.view.warnings if asked.view else ()))
        if sampling.temperature != 0 or asked.options.perturb or not chooses or m == 1:
            return m, sampling, warnings
        warmer = self.settings.guidance_temperature
        if not warmer:
            said = f"temperature is 0, at which candidates are equal; {asked.n} drawn"
            return asked.n, sampling, (*warnings, said)
        said = (
            f"temperature is 0, at which candidates are equal; the first was drawn so and the others at {warmer:g} "
            "(QGUIDE_GUIDANCE_TEMPERATURE)"
        )
        sampling = replace(sampling, temperature=warmer, first_greedy=True)
        return m, sampling, (*warnings, said)

    def _reading(self, asked: GuidedStepRequest, plan: "_Plan") -> AbstractContextManager[None]:
        """The history is read during the block, where an upstream draws and the device is idle."""
        draws_elsewhere = asked.policy.upstream_model is not None
        scores = plan.guidance.num_candidates > 1 or plan.guidance.always_score
        if not (self.settings.read_ahead and draws_elsewhere and scores) or plan.scorer.obstacle is not None:
            return nullcontext()
        return plan.scorer.reading_ahead(asked.read_history)

    def _policy(self, served: ServedPolicy, episode_id: str | None) -> Policy:
        """The policy; an upstream's router gets its draws alone by episode."""
        session_id = upstream_session(episode_id or "")
        return MeteredPolicy(served.model, self.metrics, stage="sample", session_id=session_id)

    def _perturbation(self, asked: GuidedStepRequest, *, chooses: bool) -> Perturbation | None:
        if not asked.options.perturb:
            return None
        if self.paraphraser is None:
            raise InvalidRequestError(
                "perturb needs a paraphraser, and this server has none; leave perturb out or set QGUIDE_PARAPHRASER"
            )
        markers = (*self.settings.task_markers, *asked.policy.task_markers)
        repeats_at = self.settings.guidance_temperature if chooses else None
        return Perturbation(self.paraphraser, asked.options.task, markers, repeats_at=repeats_at)

    async def _remember(
        self, asked: GuidedStepRequest, plan: "_Plan", taken: GuidedStepResult, held: QModelLease, play: LearningStep
    ) -> None:
        if taken.episode_id is None:
            return
        decision, q_model = taken.decision, held.model
        below = decision.below_threshold
        greedy = plan.guidance.sampling.first_is_greedy and decision.candidates[0].greedy is not False
        # None where the Q model was not asked, or nothing refuses a state.
        bounded = plan.scorer.domain is not None or (decision.window is not None and plan.scorer.least_read > 0)
        known = decision.out_of_domain or (bounded and decision.q_values is not None)
        offer = Offer(
            q_values={candidate.message.text: q for candidate, q in decision.scored_candidates},
            chosen=decision.action.text,
            **q_model.recorded,
            policy=asked.policy.name,
            drawn_by=decision.candidates[decision.chosen].policy,
            prompt_tokens=decision.usage.prompt_tokens,
            completion_tokens=decision.usage.completion_tokens,
            cost=taken.cost.sample if taken.cost else None,
            counts=Counter(candidate.message.text for candidate in decision.candidates),
            verdicts=decision.verdict_of,
            greedy=decision.candidates[0].message.text if greedy else "",
            asked=asked.options.q_model or "",
            reason=decision.reason,
            tau=decision.tau,
            duration_ms=taken.total_ms,
            window=decision.window,
            threshold=below.below if below else None,
            actions=action_rows(decision, taken.action_policies),
            out_of_domain=decision.out_of_domain if known else None,
            shadow=held.shadow.id if held.shadow else "",
            shadowed=await shadowed(asked, decision, play, self.settings, greedy=greedy),
            arm=play.arm,
            propensity=None if play.arm is None else propensity_of(decision),
            earned=asked.options.earned,
        )
        await self.episodes.end_step(
            taken.episode_id,
            asked.history,
            offer,
            candidates=(candidate.message for candidate, _ in decision.scored_candidates),
            tools=asked.has_tools,
            unreadable=str(asked.unreadable or ""),
            outcome=self.outcome,
            final=asked.has_tools and not decision.action.tool_calls,
            strict=not asked.agent_session,
        )

    def _with_prior_warning(
        self, decision: Decision, asked: GuidedStepRequest, plan: "_Plan", q_model: str
    ) -> Decision:
        """A warning of votes in place of a likelihood, where the request asked for that; else they are counted.

        `prior_by` says so in any case, and a caller who did not choose the prior cannot mend it.
        """
        wanted = plan.guidance.prior
        if plan.guidance.selection == "argmax" or decision.prior_by == wanted:
            return decision
        if asked.options.prior is None:
            self.metrics.count_missing_likelihood(q_model, asked.policy.name)
            return decision
        said = f"prior is {wanted}, but a candidate has no logprob; votes were used"
        return replace(decision, warnings=(*decision.warnings, said))

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


@dataclass(frozen=True, slots=True)
class _Plan:
    """Decisions of a step that are made before anything is drawn."""

    guidance: Guidance
    scorer: StepScorer
    perturbation: Perturbation | None
    threshold: ThresholdSettings | None
    escalation: Policy | None
    warnings: tuple[str, ...]

    @property
    def draws_only(self) -> bool:
        """True if one candidate is drawn and no Q model is asked, so that it is known from its first word."""
        guidance = self.guidance
        scores = self.scorer.obstacle is None and (guidance.always_score or guidance.until is not None)
        return guidance.num_candidates == 1 and not scores and self.perturbation is None
