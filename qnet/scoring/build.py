"""Builders of the scorers for a loaded Q model: the fast one and the reference, and ensembles.

    Q(s, a) = 1/K * sum_k c_k Q_k(s, a)                       of an ensemble's K members of scales c_k

Each network has its own trunk, so each keeps its own histories and computes its own tokens.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import mul
from statistics import fmean
from typing import Any

from qguide.qnet.engine.packed_model import DEFAULT_TOKENS_PER_FORWARD
from qguide.qnet.errors import CheckpointError
from qguide.qnet.models.checkpoint import LoadedEnsemble, LoadedFeatureQ, LoadedImplicitQ, LoadedQModel, LoadedQNet
from qguide.qnet.models.feature_q import FeatureScorer
from qguide.qnet.scoring.full_sequences import FullSequenceScorer
from qguide.qnet.scoring.implicit_q import NaiveImplicitScorer, SharedPrefixImplicitScorer
from qguide.qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer
from qguide.qnet.sliced_scorer import CacheUse, CachingScorer, Slices, Spending
from qguide.qnet.types import ScoreRequest, ScoreResult
from qguide.qnet.work import NOTHING, total_of


class EnsembleScorer(CachingScorer):
    """The mean of its members' scaled values; they score one after the other, each with the histories that it keeps."""

    def __init__(self, name: str, members: Sequence[CachingScorer], scales: Sequence[float]) -> None:
        self.name = name
        self.reads_observation = any(member.reads_observation for member in members)
        self.reads_ahead = any(member.reads_ahead for member in members)
        contexts = [member.context for member in members if member.context is not None]
        self.context = min(contexts, default=None)
        self._members, self._scales = tuple(members), tuple(scales)

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
        return _means(results, self._scales)

    def prepare_history(self, request: ScoreRequest) -> list[tuple[CachingScorer, Any]]:
        """The tokens of a history for each member that can read ahead."""
        prepared = [(member, member.prepare_history(request)) for member in self._members]
        return [(member, tokens) for member, tokens in prepared if tokens is not None]

    def read_ahead(
        self, prepared: Sequence[tuple[CachingScorer, Any]], *, begin: Callable[[int], None]
    ) -> Iterator[None]:
        """Read a history into the members' caches, one after the other."""
        return chain.from_iterable(member.read_ahead(tokens, begin=begin) for member, tokens in prepared)

    @property
    def cache(self) -> CacheUse:
        """Use of all members' caches now."""
        uses = [member.cache for member in self._members]
        return CacheUse(sum(use.nbytes for use in uses), sum(use.evictions for use in uses))

    def close(self) -> None:
        """Let go of every member's histories; it scores no more."""
        for member in self._members:
            member.close()


def _after(work: Slices[list[ScoreResult]], before: Spending) -> Slices[tuple[list[ScoreResult], Spending]]:
    """The slices of one member; what each request has cost includes the members before it."""
    spending = before
    given_up: frozenset[int] | None = None
    try:
        while True:
            mine = next(work) if given_up is None else work.send(given_up)
            spending = {
                index: total_of([before.get(index, NOTHING), mine.get(index, NOTHING)]) for index in {*before, *mine}
            }
            given_up = yield spending
    except StopIteration as end:
        return end.value, spending
    finally:
        work.close()


def _means(results: Iterable[Sequence[ScoreResult]], scales: Sequence[float]) -> list[ScoreResult]:
    """The mean of the members' scaled values for each candidate, with the sum of their tokens."""
    return [
        ScoreResult(
            tuple(fmean(map(mul, scales, values)) for values in zip(*(r.q_values for r in of_request), strict=True)),
            computed_tokens=sum(r.computed_tokens for r in of_request),
            cached_tokens=sum(r.cached_tokens for r in of_request),
        )
        for of_request in zip(*results, strict=True)
    ]


FastScorer = SharedPrefixScorer | SharedPrefixImplicitScorer | FeatureScorer | EnsembleScorer


def build_shared_prefix_scorer(
    loaded: LoadedQModel | LoadedFeatureQ, *, cache_bytes: int, tokens_per_forward: int = DEFAULT_TOKENS_PER_FORWARD
) -> FastScorer:
    """The fast scorer of a Q model of any kind."""
    match loaded:
        case LoadedQNet():
            return SharedPrefixScorer(loaded, cache_bytes=cache_bytes, tokens_per_forward=tokens_per_forward)
        case LoadedImplicitQ():
            return SharedPrefixImplicitScorer(loaded, cache_bytes=cache_bytes, tokens_per_forward=tokens_per_forward)
        case LoadedFeatureQ():
            return FeatureScorer(loaded.name, loaded.model)
        case LoadedEnsemble():
            share = cache_bytes // len(loaded.members)
            members = [
                build_shared_prefix_scorer(member, cache_bytes=share, tokens_per_forward=tokens_per_forward)
                for member in loaded.members
            ]
            return EnsembleScorer(loaded.name, members, loaded.scales)


def build_serving_scorer(
    loaded: LoadedQModel, *, cache_bytes: int, tokens_per_forward: int, full_sequences: bool
) -> FastScorer | FullSequenceScorer:
    """The fast scorer, or full sequences where that one refuses the architecture.

    Args:
        full_sequences: allow these where no history is kept between steps, too; without it such an
            architecture is refused with the reason.
    """
    try:
        return build_shared_prefix_scorer(loaded, cache_bytes=cache_bytes, tokens_per_forward=tokens_per_forward)
    except CheckpointError:
        members = loaded.members if isinstance(loaded, LoadedEnsemble) else (loaded,)
        share = cache_bytes // len(members)
        scorers = [
            FeatureScorer(member.name, member.model)
            if isinstance(member, LoadedFeatureQ)
            else FullSequenceScorer(member, tokens_per_forward=tokens_per_forward, cache_bytes=share)
            for member in members
        ]
        if not full_sequences and not all(isinstance(one, FeatureScorer) or one.keeps_histories for one in scorers):
            raise
    return EnsembleScorer(loaded.name, scorers, loaded.scales) if isinstance(loaded, LoadedEnsemble) else scorers[0]


def build_naive_scorer(loaded: LoadedQModel | LoadedFeatureQ) -> CachingScorer:
    """The reference, which the fast one has to equal; an ensemble's is the mean of its members' own."""
    match loaded:
        case LoadedQNet():
            return NaiveScorer(loaded)
        case LoadedImplicitQ():
            return NaiveImplicitScorer(loaded)
        case LoadedFeatureQ():
            return FeatureScorer(loaded.name, loaded.model)
        case LoadedEnsemble():
            return EnsembleScorer(loaded.name, list(map(build_naive_scorer, loaded.members)), loaded.scales)
