"""Scorers of an ensemble: Q is the mean over its members.

    Q(s, a) = 1/K * sum_k Q_k(s, a)

Each member has its own trunk, so each keeps its own histories and computes its own tokens.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

from qguide.qnet.scoring.implicit_q import NaiveImplicitScorer
from qguide.qnet.scoring.value_head import NaiveScorer
from qguide.qnet.sliced_scorer import CacheUse, CachingScorer
from qguide.qnet.types import Scorer, ScoreRequest, ScoreResult, Slices, Spending
from qguide.qnet.usage import NOTHING, total_of


class NaiveEnsembleScorer(Scorer):
    """The reference: the mean of the members' own references."""

    def __init__(self, name: str, members: Sequence[NaiveScorer | NaiveImplicitScorer]) -> None:
        self.name = name
        self.context = min(member.context for member in members)
        self.reads_observation = members[0].reads_observation
        self._members = members

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate; raises what the members raise."""
        return _means(member.score(requests) for member in self._members)


class EnsembleScorer(CachingScorer):
    """Scores with one member after the other, each with the histories that it keeps.

    Args:
        name: of the ensemble.
        members: their fast scorers, which share the budget for histories.
    """

    def __init__(self, name: str, members: Sequence[CachingScorer]) -> None:
        self.name = name
        self.reads_observation = members[0].reads_observation
        self.reads_ahead = any(member.reads_ahead for member in members)
        self.context = min((m.context for m in members if m.context is not None), default=None)
        self._members = tuple(members)

    def prepare(self, request: ScoreRequest) -> tuple[Any, ...]:
        """The request's tokens for each member; raises what `score` does."""
        return tuple(member.prepare(request) for member in self._members)

    def slices(self, prepared: Sequence[tuple[Any, ...]]) -> Slices[list[ScoreResult]]:
        """The results of `score`, one forward pass of one member after the other."""
        before: Spending = {}
        results = []
        for number, member in enumerate(self._members):
            mine = member.slices([of_each[number] for of_each in prepared])
            found, before = yield from _after(mine, before)
            results.append(found)
        return _means(results)

    def prepare_history(self, request: ScoreRequest) -> list[tuple[CachingScorer, Any]]:
        """The tokens of a history for each member that can read ahead."""
        prepared = [(member, member.prepare_history(request)) for member in self._members]
        return [(member, tokens) for member, tokens in prepared if tokens is not None]

    def read_ahead(
        self, prepared: Sequence[tuple[CachingScorer, Any]], *, begin: Callable[[int], None]
    ) -> Iterator[None]:
        """Read a history into the members' caches, one after the other."""
        return chain.from_iterable(
            member.read_ahead(tokens, begin=begin) for member, tokens in prepared
        )

    @property
    def cache(self) -> CacheUse:
        """Use of all members' caches now."""
        uses = [member.cache for member in self._members]
        return CacheUse(sum(use.nbytes for use in uses), sum(use.evictions for use in uses))

    def close(self) -> None:
        """Let go of every member's histories; it scores no more."""
        for member in self._members:
            member.close()


def _after(
    work: Slices[list[ScoreResult]], before: Spending
) -> Slices[tuple[list[ScoreResult], Spending]]:
    """The slices of one member; what each request has cost includes the members before it."""
    spending = before
    given_up: frozenset[int] | None = None
    try:
        while True:
            mine = next(work) if given_up is None else work.send(given_up)
            spending = {
                index: total_of([before.get(index, NOTHING), mine.get(index, NOTHING)])
                for index in {*before, *mine}
            }
            given_up = yield spending
    except StopIteration as end:
        return end.value, spending
    finally:
        work.close()


def _means(results: Iterable[Sequence[ScoreResult]]) -> list[ScoreResult]:
    """The mean of the members' values for each candidate, with the sum of their tokens."""
    return [
        ScoreResult(
            tuple(map(fmean, zip(*(r.q_values for r in of_request), strict=True))),
            computed_tokens=sum(r.computed_tokens for r in of_request),
            cached_tokens=sum(r.cached_tokens for r in of_request),
        )
        for of_request in zip(*results, strict=True)
    ]
