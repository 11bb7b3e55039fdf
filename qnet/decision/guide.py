"""One guided step of a server: answers what `decide` asks for, within a deadline.

Every endpoint that draws candidates calls `guide`. Perturbation (Q*Agent-I-aug) wraps the policy: candidates are drawn
under paraphrases of the task and scored after the true history. All work done for one request has one deadline.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Final, Self

from qguide.qnet.decision.decide import decide
from qguide.qnet.decision.decision import Decision, Guidance, StepTimings
from qguide.qnet.decision.perturbation import Paraphraser, PerturbedPolicy, find_task
from qguide.qnet.errors import DeadlineExceededError, QGuideError
from qguide.qnet.types import (
    AsyncScorer,
    Candidate,
    DrawRole,
    History,
    Policy,
    SampleRequest,
    ScoreRequest,
    ScoreResult,
    TaskMarker,
)
from qguide.qnet.work import TokenUsage, collect_usage, taken_by, total_of

DRAWING: Final = "candidates were still being drawn"
SCORING: Final = "candidates were still being scored"
AT_UPSTREAM: Final = "the upstream was still at work"
REWORDING: Final = "the task was still being reworded"
"""Work that a deadline can end."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A shared deadline for all work done for one request.

    Attributes:
        at: by the running loop's clock; None never comes.
    """

    at: float | None = None
    timeout_s: float = 0.0
    remedy: str = "ask for less or try again later"

    @classmethod
    def after(cls, timeout_s: float, *, remedy: str = remedy) -> Self:
        """A deadline that many seconds from now."""
        return cls(asyncio.get_running_loop().time() + timeout_s, timeout_s, remedy)

    @asynccontextmanager
    async def enforce(self, doing: str) -> AsyncIterator[None]:
        """Cancel the block, and what waits for the device, when the time is up; the error says what was `doing`."""
        try:
            async with asyncio.timeout_at(self.at) as time:
                yield
        except TimeoutError as error:
            if not time.expired():  # the block's own
                raise
            raise DeadlineExceededError(f"no answer within {self.timeout_s:g} s, {doing}; {self.remedy}") from error


NO_DEADLINE: Final = Deadline()


@dataclass(frozen=True, slots=True)
class Perturbation:
    """Rewording of the task for drawing.

    Attributes:
        task: the task's description, if it is not where `markers` say.
        markers: see `find_task`.
        repeats_at: at temperature 0, the temperature of candidates whose text was drawn before, as they would be equal;
            0 draws none of them that the caller does not get back. None draws them at 0.
    """

    paraphraser: Paraphraser
    task: str | None = None
    markers: tuple[TaskMarker, ...] = ()
    repeats_at: float | None = None


async def guide(
    history: History,
    policy: Policy,
    scorer: AsyncScorer,
    guidance: Guidance,
    *,
    perturbation: Perturbation | None = None,
    escalation: Policy | None = None,
    deadline: Deadline = NO_DEADLINE,
) -> Decision:
    """Draw candidates, score them after the true history, take the best.

    Args:
        escalation: the policy of the threshold's action `escalate`.

    Raises:
        InvalidCandidatesError: M is below 1.
        InvalidRequestError: the perturbation's task is not in the first user message.
        HistoryTooLongError: the history does not fit the policy or the Q model.
        ScorerUnavailableError: no Q can be given.
        DeadlineExceededError: the time is up.
        UpstreamError: the policy's upstream failed.
    """
    further: dict[DrawRole, Policy] = {"refine": policy}
    if escalation is not None:
        further["escalate"] = escalation
    wait_s = guidance.max_wait_s
    until = None if wait_s is None else asyncio.get_running_loop().time() + wait_s
    if perturbation is None:
        return await _Driver(policy, scorer, deadline, further, until).run(history, guidance)
    started = perf_counter()
    place = find_task(history, task=perturbation.task, markers=perturbation.markers)
    async with deadline.enforce(REWORDING):
        paraphrases = await perturbation.paraphraser.paraphrase(
            place.text(history), n=max(guidance.num_candidates - 1, 0), within_s=wait_s
        )
    paraphrase_ms = (perf_counter() - started) * 1e3
    texts = paraphrases.texts
    if perturbation.repeats_at == 0 and guidance.sampling.temperature == 0:
        texts = tuple(text for text in dict.fromkeys(texts) if text != place.text(history))  # equal ones are one draw
        most = max(guidance.at_least, min(guidance.num_candidates, len(texts) + 1))
        guidance = replace(guidance, num_candidates=most)
    perturbed = PerturbedPolicy(policy, place, texts, repeats_at=perturbation.repeats_at)
    decision = await _Driver(perturbed, scorer, deadline, further, until).run(history, guidance)
    return replace(
        decision,
        perturbed=perturbed.perturbed,
        warnings=(*paraphrases.warnings, *perturbed.warnings, *decision.warnings),
        usage=replace(decision.usage, paraphrasing=paraphrases.spent),
        timings=replace(decision.timings, paraphrase_ms=paraphrase_ms),
    )


class _TimeIsUpError(Exception):
    """The caller waits no longer; not a `TimeoutError`, which a policy may raise."""


class _Draw:
    """A draw under way, whose candidates are taken as they finish."""

    def __init__(self, work: Coroutine[Any, Any, list[Candidate]]) -> None:
        self._come: list[Candidate] = []
        self._taken = self.has_ended = False
        self._changed = asyncio.Event()
        with collect_usage() as self.answered, taken_by(self._take):
            self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(lambda _: self._changed.set())

    async def further(self, until: float | None) -> list[Candidate]:
        """Candidates that came since the last call, as soon as there is one; none once the draw has ended."""
        try:
            async with asyncio.timeout_at(until):
                await self._changed.wait()
        except TimeoutError as error:
            raise _TimeIsUpError from error
        self._changed.clear()
        if self._task.done():
            self._changed.set()
            if not self._come:  # what came before a failure is taken before that is told
                drawn = self._task.result()
                self._come = [] if self._taken else drawn  # of a policy that has them all at once
                self._taken = self.has_ended = True
        come, self._come = self._come, []
        return come

    async def give_up(self) -> None:
        """Cancel what is still being drawn."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _take(self, some: list[Candidate]) -> None:
        self._come += some
        self._taken = True
        self._changed.set()


@dataclass(slots=True)
class _Driver:
    """Answers one decision's requests and times each kind; `further` policies draw in the roles that they have."""

    policy: Policy
    scorer: AsyncScorer
    deadline: Deadline
    further: Mapping[DrawRole, Policy]
    until: float | None  # end of the caller's patience by the running loop's clock
    seconds: dict[type, float] = field(default_factory=lambda: defaultdict(float))
    draws: list[_Draw] = field(default_factory=list)
    cut_off: list[TokenUsage] = field(default_factory=list)
    drawn: int = 0
    failed: bool = False
    left_out: list[str] = field(default_factory=list)

    async def run(self, history: History, guidance: Guidance) -> Decision:
        process = decide(history, guidance)
        try:
            request = next(process)
            while True:
                try:
                    answer = await self._answer(request, guidance)
                except Exception as error:
                    request = process.throw(error)  # `decide` may have a fallback for it
                else:
                    request = process.send(answer)
        except StopIteration as end:
            decision: Decision = end.value
        finally:
            for draw in self.draws:
                await draw.give_up()
        timings = StepTimings(sample_ms=self.seconds[SampleRequest] * 1e3, score_ms=self.seconds[ScoreRequest] * 1e3)
        answered = [spent for draw in self.draws for spent in draw.answered]
        answered = [decision.usage.below_threshold, *self.cut_off, *answered]
        usage, warnings = decision.usage.at_least(total_of(answered)), (*decision.warnings, *self.left_out)
        saved = 0 if self.failed else decision.draws_saved  # what failed was needed
        return replace(decision, timings=timings, usage=usage, warnings=warnings, draws_saved=saved)

    async def _answer(
        self, request: SampleRequest | ScoreRequest, guidance: Guidance
    ) -> Sequence[Candidate] | ScoreResult:
        started = perf_counter()
        try:
            is_score = isinstance(request, ScoreRequest)
            # A deadline for the whole request and not for each part: its time is what the caller waits.
            async with self.deadline.enforce(SCORING if is_score else DRAWING):
                if isinstance(request, ScoreRequest):
                    return await self.scorer.score(request)
                policy = self.further.get(request.role, self.policy)
                if guidance.as_finished:
                    return await self._as_finished(policy, request, guidance)
                return await policy.sample(request.history, n=request.n, sampling=request.sampling)
        finally:
            self.seconds[type(request)] += perf_counter() - started

    async def _as_finished(self, policy: Policy, request: SampleRequest, guidance: Guidance) -> Sequence[Candidate]:
        """Candidates that came since the last request; none, and a warning, once the time is up or a draw failed."""
        until = self.until if self.drawn >= guidance.at_least else None
        if request.role != "act":
            for draw in self.draws:  # the choice among them is made
                await draw.give_up()
            return await self._in_time(policy, request, until)
        come: list[Candidate] = []
        try:
            while not come:
                if not self.draws or self.draws[-1].has_ended:
                    if until is not None and asyncio.get_running_loop().time() >= until:
                        raise _TimeIsUpError
                    self.draws.append(_Draw(policy.sample(request.history, n=request.n, sampling=request.sampling)))
                come = await self.draws[-1].further(until)
        except _TimeIsUpError:
            came = f"{self.drawn} of {guidance.num_candidates} candidates came within max_wait_s"
            self.left_out.append(f"{came} ({guidance.max_wait_s:g} s)")
        except QGuideError as error:
            if until is None:
                raise
            self.failed = True
            self.left_out.append(f"a draw failed: {error}")
        self.drawn += len(come)
        return come

    async def _in_time(self, policy: Policy, request: SampleRequest, until: float | None) -> Sequence[Candidate]:
        """All candidates of a draw; none if the time is up before."""
        if until is not None and asyncio.get_running_loop().time() >= until:
            return []
        with collect_usage() as answered:
            try:
                async with asyncio.timeout_at(until) as time:
                    return await policy.sample(request.history, n=request.n, sampling=request.sampling)
            except TimeoutError:
                if not time.expired():
                    raise
                self.cut_off += answered
                return []
