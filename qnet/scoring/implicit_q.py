"""Scorers of the implicit Q: the plain reference and the fast one.

Both read log-probabilities at the actions' tokens alone; the fast one makes vocabulary logits
nowhere else, and keeps the histories of the policy and of its reference from step to step.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import fsum

import torch

from qguide.qnet.engine.context_length import context_length
from qguide.qnet.engine.forward_passes import metered
from qguide.qnet.engine.packed_model import (
    DEFAULT_CACHE_BYTES,
    DEFAULT_TOKENS_PER_FORWARD,
)
from qguide.qnet.errors import MalformedHistoryError
from qguide.qnet.models.checkpoint import LoadedImplicitQ
from qguide.qnet.scoring.logprobs import LogprobReader, LogprobReading
from qguide.qnet.scoring.rendered_requests import RenderedRequest, RequestRenderer
from qguide.qnet.sliced_scorer import CacheUse, CachingScorer
from qguide.qnet.types import Scorer, ScoreRequest, ScoreResult, Slices


class NaiveImplicitScorer(Scorer):
    """Every full sequence alone through both models, nothing kept."""

    def __init__(self, loaded: LoadedImplicitQ) -> None:
        self.name = loaded.name
        self.context = _context(loaded)
        self._loaded = loaded

    @torch.inference_mode()
    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate; every candidate costs its whole sequence, twice."""
        return [self.score_rendered(self.prepare(request)) for request in requests]

    def prepare(self, request: ScoreRequest) -> RenderedRequest:
        """The request's tokens; raises what `score` does."""
        return _render(self._loaded, request, self.context)

    def prepare_history(self, request: ScoreRequest) -> tuple[str, list[int]]:
        """The tokens of a history without candidates."""
        renderer = RequestRenderer(self._loaded.renderer, self.name, self.context)
        return renderer.prepare_history(request)

    @torch.inference_mode()
    def score_rendered(self, rendered: RenderedRequest) -> ScoreResult:
        """Q of each candidate of one request."""
        sequences = list(rendered.sequences)
        start = len(rendered.history)
        q_values = tuple(self._q(token_ids, start) for token_ids in sequences)
        return ScoreResult(q_values, computed_tokens=2 * sum(map(len, sequences)))

    def _q(self, token_ids: list[int], start: int) -> float:
        model = self._loaded.model
        added_BT = model(torch.tensor([token_ids], device=model.device))
        return fsum(added_BT[0, start - 1 :].tolist())


class SharedPrefixImplicitScorer(CachingScorer):
    """Each model computes what is new to it: histories kept, candidates as one tree.

    Args:
        cache_bytes: for the histories kept between steps, half for each model.
        tokens_per_forward: longest packed row of one forward pass.
    """

    context: int
    reads_ahead = True

    def __init__(
        self,
        loaded: LoadedImplicitQ,
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        tokens_per_forward: int = DEFAULT_TOKENS_PER_FORWARD,
    ) -> None:
        self.name = loaded.name
        self._loaded = loaded
        self._policy, self._reference = (
            LogprobReader(
                model, cache_bytes=cache_bytes // 2, tokens_per_forward=tokens_per_forward
            )
            for model in (loaded.model.policy, loaded.model.reference)
        )
        self.context = min(self._policy.context, self._reference.context)

    def prepare(self, request: ScoreRequest) -> RenderedRequest:
        """The request's tokens; raises what `score` does."""
        return _render(self._loaded, request, self.context)

    @torch.inference_mode()
    def slices(self, prepared: Sequence[RenderedRequest]) -> Slices[list[ScoreResult]]:
        """The results of `score`, one forward pass after the other."""
        if not prepared:
            return []
        spent = Counter[int]()
        policies = yield from metered(self._policy.read(prepared), spent)
        references = yield from metered(self._reference.read(prepared), spent)
        return [
            self._result(request, policy, reference)
            for request, policy, reference in zip(prepared, policies, references, strict=True)
        ]

    def prepare_history(self, request: ScoreRequest) -> tuple[str, list[int]]:
        """The tokens of a history without candidates."""
        renderer = RequestRenderer(self._loaded.renderer, self.name, self.context)
        return renderer.prepare_history(request)

    def read_ahead(
        self, prepared: tuple[str, list[int]], *, begin: Callable[[int], None]
    ) -> Iterator[None]:
        """Read a history into both models' caches; see `qguide.qnet.device.scoring_worker`."""
        readers = (self._policy, self._reference)
        return chain.from_iterable(one.read_ahead(prepared, begin=begin) for one in readers)

    @property
    def cache(self) -> CacheUse:
        """Use of both models' caches now."""
        policy, reference = self._policy.cache, self._reference.cache
        return CacheUse(policy.nbytes + reference.nbytes, policy.evictions + reference.evictions)

    def close(self) -> None:
        """Let go of every history of both models; it scores no more."""
        self._policy.clear()
        self._reference.clear()

    def _result(
        self, request: RenderedRequest, policy: LogprobReading, reference: LogprobReading
    ) -> ScoreResult:
        beta: float = self._loaded.model.config.beta
        q_values = [
            beta * fsum(p - r for p, r in zip(ours, theirs, strict=True))
            for ours, theirs in zip(policy.logprobs, reference.logprobs, strict=True)
        ]
        return ScoreResult(
            tuple(q_values[i] for i in request.index),
            computed_tokens=sum(request.new_tokens(r.known) for r in (policy, reference)),
            cached_tokens=policy.known + reference.known,
        )


def _render(loaded: LoadedImplicitQ, request: ScoreRequest, context: int) -> RenderedRequest:
    rendered = RequestRenderer(loaded.renderer, loaded.name, context).prepare(request)
    if not rendered.history:
        raise MalformedHistoryError(
            "the history has 0 tokens, so the reply's first one has no probability; give a message"
        )
    return rendered


def _context(loaded: LoadedImplicitQ) -> int:
    model = loaded.model
    return min(context_length(model.policy.config), context_length(model.reference.config))
