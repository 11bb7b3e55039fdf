"""One guided step, for every route that draws candidates."""

from dataclasses import dataclass
from time import perf_counter

from qnet.deadline import Deadline
from qnet.errors import InvalidCandidatesError, InvalidRequestError
from qnet.guidance import Guidance, Guided, guide
from qnet.perturbation import Paraphraser
from qnet.types import History, Sampling
from server.episodes.service import Episodes
from server.episodes.state import Episode
from server.models import Models, ServedPolicy
from server.q_models import Held
from server.schemas import StepOptions
from server.settings import Settings
from server.telemetry import Telemetry
from server.tracing import TracedPolicy


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for an action, checked.

    Attributes:
        num_candidates: M.
        n: how many of the best candidates the caller wants.
    """

    policy: ServedPolicy
    history: History
    sampling: Sampling
    num_candidates: int
    options: StepOptions
    n: int = 1


@dataclass(frozen=True, slots=True)
class Taken:
    """A guided step, who guided it and how long it took."""

    guided: Guided
    policy: str
    q_model: str
    q_model_version: str
    total_ms: float


@dataclass(frozen=True, slots=True)
class Stepper:
    """Takes guided steps, remembers those of an episode and counts what they cost."""

    settings: Settings
    models: Models
    episodes: Episodes
    paraphraser: Paraphraser | None
    telemetry: Telemetry
    deadline: Deadline

    def check_num_candidates(self, num_candidates: int) -> None:
        """Refuse an M that is out of range.

        Raises:
            InvalidCandidatesError: it is below 1 or above the limit.
        """
        most = self.settings.max_candidates
        if not 1 <= num_candidates <= most:
            raise InvalidCandidatesError(f"num_candidates is {num_candidates}; ask for 1 to {most}")

    async def take(self, asked: Asked) -> Taken:
        """Draw candidates, score them, choose.

        Raises:
            QGuideError: there is no action; see `qnet.guidance.guide`.
            EpisodeClosedError: the episode has ended.
        """
        started = perf_counter()
        options = asked.options
        self.check_num_candidates(asked.num_candidates)
        episode = await self.episodes.begin_step(options.episode_id)
        # Found before anything is drawn and held to the end: no answer mixes two versions.
        with self.models.q_models.hold(options.q_model, episode_id=options.episode_id) as q_model:
            guidance = self._guidance(asked, episode, q_model.id)
            policy = TracedPolicy(asked.policy.model, self.telemetry.tracing)
            guided = await guide(asked.history, policy, q_model.scorer, guidance)
            self._measure(guided, q_model.id)
        await self._remember(asked, guided, q_model)
        total_ms = (perf_counter() - started) * 1e3
        return Taken(guided, asked.policy.name, q_model.name, q_model.version, total_ms)

    def _guidance(self, asked: Asked, episode: Episode | None, q_model: str) -> Guidance:
        options = asked.options
        if options.perturb and self.paraphraser is None:
            raise InvalidRequestError(
                "perturb needs a policy that paraphrases, and this server has none; set "
                "QGUIDE_PARAPHRASER"
            )
        return Guidance(
            num_candidates=asked.num_candidates,
            sampling=asked.sampling,
            rise_over=_previous_q(options, asked.history, episode, q_model),
            paraphraser=self.paraphraser if options.perturb else None,
            task=options.task,
            batch=self.settings.adaptive_batch,
            at_least=asked.n,
            always_score=options.adaptive,
            fallback=options.fallback or self.settings.fallback,
            deadline=self.deadline,
        )

    async def _remember(self, asked: Asked, guided: Guided, q_model: Held) -> None:
        decision = guided.decision
        q_values = decision.q_values or (None,) * len(decision.candidates)
        await self.episodes.end_step(
            asked.options.episode_id,
            asked.history,
            q_values={
                candidate.message.text: q
                for candidate, q in zip(decision.candidates, q_values, strict=True)
            },
            chosen=decision.action.text,
            q_model=q_model.id,
            policy=asked.policy.name,
            completion_tokens=decision.usage.completion_tokens,
        )

    def _measure(self, guided: Guided, q_model: str) -> None:
        decision, telemetry = guided.decision, self.telemetry
        telemetry.draws_saved.inc(guided.draws_saved)
        if guided.paraphrase_ms:
            telemetry.stage_seconds.labels("paraphrase").observe(guided.paraphrase_ms / 1e3)
        telemetry.stage_seconds.labels("sample").observe(decision.timings.sample_ms / 1e3)
        if decision.q_values is not None:
            telemetry.stage_seconds.labels("score").observe(decision.timings.score_ms / 1e3)
        if decision.unguided is not None:
            telemetry.unguided.labels(q_model).inc()
        telemetry.candidates.observe(decision.distinct_candidates)
        usage = decision.usage
        for prompt, completion in (
            (usage.prompt_tokens, usage.completion_tokens),
            (guided.paraphrasing.prompt_tokens, guided.paraphrasing.completion_tokens),
        ):
            telemetry.count_drawn(prompt=prompt, completion=completion)
        telemetry.paraphrase_tokens.inc(
            guided.paraphrasing.prompt_tokens + guided.paraphrasing.completion_tokens
        )
        telemetry.count_scored(q_model, computed=usage.scored_tokens, cached=usage.cached_tokens)


def _previous_q(
    options: StepOptions, history: History, episode: Episode | None, q_model: str
) -> float | None:
    """What adaptive M has to rise over; None at an episode's first step."""
    if not options.adaptive:
        return None
    if options.previous_q is None and options.episode_id is None:
        raise InvalidRequestError(
            "adaptive draws until Q rises over the previous step's; give episode_id or previous_q"
        )
    if options.previous_q is None and episode is not None:
        return episode.previous_q(history, q_model=q_model)
    return options.previous_q
