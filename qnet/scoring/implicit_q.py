"""Scorers of the implicit Q: the plain reference and the fast one.

Both read log-probabilities at the actions' tokens alone; the fast one makes vocabulary logits
nowhere else, and keeps the histories of the policy and of its reference from step to step.
"""

from collections import Counter
from collections.abc import Sequence
from math import fsum
from operator import sub

import torch

from qguide.qnet.engine.context_length import context_length
from qguide.qnet.engine.packed_model import DEFAULT_CACHE_BYTES, DEFAULT_TOKENS_PER_FORWARD
from qguide.qnet.models.checkpoint import LoadedImplicitQ
from qguide.qnet.scoring.logprobs import LogprobReader, LogprobReading
from qguide.qnet.scoring.rendered_requests import RenderedRequest, RenderingScorer, RequestRenderer, metered
from qguide.qnet.sliced_scorer import Slices
from qguide.qnet.types import ScoreResult


class NaiveImplicitScorer(RenderingScorer):
    """Every full sequence alone through both models, nothing kept."""

    def __init__(self, loaded: LoadedImplicitQ) -> None:
        configs = (loaded.model.policy.config, loaded.model.reference.config)
        super().__init__(request_renderer(loaded, min(map(context_length, configs))))
        self._loaded = loaded

    def slices(self, prepared: Sequence[RenderedRequest]) -> Slices[list[ScoreResult]]:
        """The results of `score`; every candidate costs its whole sequence, twice."""
        yield {}
        return [self.score_rendered(request) for request in prepared]

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


class SharedPrefixImplicitScorer(RenderingScorer):
    """Each model computes what is new to it: histories kept, in half of the cache each, candidates as one tree."""

    def __init__(
        self,
        loaded: LoadedImplicitQ,
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        tokens_per_forward: int = DEFAULT_TOKENS_PER_FORWARD,
    ) -> None:
        self._loaded = loaded
        self._policy, self._reference = (
            LogprobReader(model, cache_bytes=cache_bytes // 2, tokens_per_forward=tokens_per_forward)
            for model in (loaded.model.policy, loaded.model.reference)
        )
        readers = [self._policy.packed, self._reference.packed]
        super().__init__(request_renderer(loaded, min(one.context for one in readers)), readers)

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

    def _result(self, request: RenderedRequest, policy: LogprobReading, reference: LogprobReading) -> ScoreResult:
        q_values = implicit_values(self._loaded.model.config.beta, policy.logprobs, reference.logprobs)
        return ScoreResult(
            tuple(q_values[i] for i in request.index),
            computed_tokens=sum(request.new_tokens(r.known) for r in (policy, reference)),
            cached_tokens=policy.known + reference.known,
        )


def implicit_values(beta: float, ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> list[float]:
    """Q of each candidate by both models' log-probabilities of its tokens: beta * sum (ours - theirs)."""
    return [beta * fsum(map(sub, *both)) for both in zip(ours, theirs, strict=True)]


def request_renderer(loaded: LoadedImplicitQ, context: int) -> RequestRenderer:
    """The renderer of requests to both models, which take so many tokens."""
    return RequestRenderer(loaded.renderer, loaded.name, context, needs_history=True)
