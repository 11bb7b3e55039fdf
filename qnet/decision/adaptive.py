"""Adaptive M: draw until Q rises over the previous step's Q, at most M.

RRO stops drawing once the process reward of a step is above the last one's; here Q stands for
it, so that the same rule serves at inference, where nothing can be rolled out (ours).
"""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from qnet.decision.act import (
    AsyncScorer,
    Decision,
    Fallback,
    Timings,
    judge,
    unscored,
    usage_of,
)
from qnet.decision.deadline import NO_DEADLINE, Deadline
from qnet.decision.selection import select
from qnet.errors import InvalidCandidatesError
from qnet.types import Candidate, History, Message, Policy, Sampling, ScoreRequest

DEFAULT_BATCH = 2
_SEEDS = 2**63


async def act_adaptively(
    history: History,
    policy: Policy,
    scorer: AsyncScorer,
    *,
    num_candidates: int,
    previous_q: float,
    sampling: Sampling,
    batch: int = DEFAULT_BATCH,
    at_least: int = 1,
    fallback: Fallback = "error",
    deadline: Deadline = NO_DEADLINE,
) -> Decision:
    """Draw in small batches until one candidate's Q is above `previous_q`; take the best.

    What was saved is `num_candidates - len(decision.candidates)`. A candidate that comes again
    is not scored again.

    Args:
        num_candidates: M, the most that are drawn.
        previous_q: Q of the action that led here, by the same Q model.
        sampling: of the first batch; the later ones draw with other seeds, and none greedily.
        batch: candidates drawn and scored at a time.
        at_least: candidates that are drawn however high the Q.
        fallback: `first` draws no more where the Q model cannot judge, and takes the first.

    Raises:
        InvalidCandidatesError: M or `batch` is below 1.
        HistoryTooLongError: the history does not fit the policy or the Q model.
        ScorerUnavailableError: no Q can be given, or not in time.
        UpstreamError: the policy's upstream failed.
    """
    if num_candidates < 1 or batch < 1:
        raise InvalidCandidatesError(
            f"num_candidates is {num_candidates} and a batch has {batch}; both are at least 1"
        )
    draws = _Draws(history, policy, scorer, fallback, deadline)
    while (drawn := len(draws.candidates)) < num_candidates:
        if drawn >= at_least and draws.settled(previous_q):
            break
        n = min(batch, num_candidates - drawn)
        await draws.add(n, sampling if drawn == 0 else _later(sampling, drawn))
    return draws.decision()


def _later(sampling: Sampling, drawn: int) -> Sampling:
    """The same way to draw, but not the same draws."""
    seed = None if sampling.seed is None else (sampling.seed + drawn) % _SEEDS
    return replace(sampling, seed=seed, first_greedy=False)


class _Draws:
    """What was drawn and scored so far, and what it cost."""

    def __init__(
        self,
        history: History,
        policy: Policy,
        scorer: AsyncScorer,
        fallback: Fallback,
        deadline: Deadline,
    ) -> None:
        self.candidates: list[Candidate] = []
        self._history = history
        self._policy = policy
        self._scorer = scorer
        self._fallback = fallback
        self._deadline = deadline
        self._unguided: str | None = None
        self._q_of: dict[Message, float] = {}
        self._scored_tokens = 0
        self._cached_tokens = 0
        self._sample_s = 0.0
        self._score_s = 0.0

    def settled(self, q_value: float) -> bool:
        """Whether a candidate is above that Q, or none will ever be known to be."""
        return self._unguided is not None or any(q > q_value for q in self._q_of.values())

    async def add(self, n: int, sampling: Sampling) -> None:
        started = perf_counter()
        async with self._deadline.enforce():
            new = await self._policy.sample(self._history, n=n, sampling=sampling)
        sampled = perf_counter()
        self.candidates += new
        await self._score([candidate.message for candidate in new])
        self._sample_s += sampled - started
        self._score_s += perf_counter() - sampled

    async def _score(self, messages: Sequence[Message]) -> None:
        unknown = tuple(m for m in dict.fromkeys(messages) if m not in self._q_of)
        if not unknown or self._unguided is not None:
            return
        request = ScoreRequest(self._history, unknown)
        judged = await judge(
            self._scorer, request, fallback=self._fallback, deadline=self._deadline
        )
        self._unguided = judged.unguided
        if judged.result is not None:
            self._q_of.update(zip(unknown, judged.result.q_values, strict=True))
            self._scored_tokens += judged.result.computed_tokens
            self._cached_tokens += judged.result.cached_tokens

    def decision(self) -> Decision:
        started = perf_counter()
        messages = [candidate.message for candidate in self.candidates]
        q_values = (
            tuple(self._q_of[message] for message in messages) if self._unguided is None else None
        )
        selection = select(messages, q_values) if q_values else unscored(messages, self._unguided)
        return Decision(
            chosen=selection.chosen,
            reason=selection.reason,
            candidates=tuple(self.candidates),
            q_values=q_values,
            distinct_candidates=len(set(messages)),
            usage=usage_of(
                self.candidates,
                scored_tokens=self._scored_tokens,
                cached_tokens=self._cached_tokens,
            ),
            timings=Timings(
                sample_ms=self._sample_s * 1e3,
                score_ms=self._score_s * 1e3,
                select_ms=(perf_counter() - started) * 1e3,
            ),
            unguided=self._unguided,
        )
