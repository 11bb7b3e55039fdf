"""Full sequences in place of packed ones, for trunks with a memory beside attention.

Hybrid trunks (convolutions, state spaces, linear attention) remember in a state that a packed row
cannot divide among conversations. That state is kept behind each history, where the architecture
goes on from one; where it does not, each request's history is computed anew.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import fsum
from typing import Any, Protocol

import torch
from torch import Tensor

from qguide.qnet.engine.full_sequences import Continuations, FullSequenceModel
from qguide.qnet.engine.uploads import upload
from qguide.qnet.models.checkpoint import LoadedImplicitQ, LoadedQNet
from qguide.qnet.models.implicit_q import token_logprobs
from qguide.qnet.scoring.implicit_q import NaiveImplicitScorer
from qguide.qnet.scoring.rendered_requests import RenderedRequest, head_features
from qguide.qnet.scoring.value_head import NaiveScorer
from qguide.qnet.sliced_scorer import CacheUse, CachingScorer
from qguide.qnet.types import ScoreRequest, ScoreResult, Slices


class _Reader(Protocol):
    """Values of the distinct candidates of each request."""

    models: tuple[FullSequenceModel[Any], ...]

    def values(
        self, prepared: Sequence[RenderedRequest], spent: Counter[int], known: Counter[int]
    ) -> Slices[list[list[float]]]: ...


class FullSequenceScorer(CachingScorer):
    """Serves a Q model whose architecture cannot be packed; equals its naive scorer.

    Args:
        tokens_per_forward: most tokens of one forward pass, padding included.
        cache_bytes: for the states kept between steps, in equal parts for each model.

    Attributes:
        keeps_histories: a history that goes on costs its new tokens alone.
    """

    def __init__(
        self,
        loaded: LoadedQNet | LoadedImplicitQ,
        *,
        tokens_per_forward: int,
        cache_bytes: int = 0,
    ) -> None:
        self._naive: NaiveScorer | NaiveImplicitScorer
        self._reader: _Reader
        match loaded:
            case LoadedQNet():
                self._naive = NaiveScorer(loaded)
                self._reader = _ValueReader(loaded, tokens_per_forward, cache_bytes)
            case LoadedImplicitQ():
                self._naive = NaiveImplicitScorer(loaded)
                self._reader = _LogprobReader(loaded, tokens_per_forward, cache_bytes)
        self.name = loaded.name
        self.context = self._naive.context
        self.reads_observation = self._naive.reads_observation
        ways = {model.way for model in self._reader.models}
        self.keeps_histories = self.reads_ahead = ways == {"shared_history"}

    def prepare(self, request: ScoreRequest) -> RenderedRequest:
        """The request's tokens; raises what `score` does."""
        return self._naive.prepare(request)

    def slices(self, prepared: Sequence[RenderedRequest]) -> Slices[list[ScoreResult]]:
        """The results of `score`, one forward pass after the other."""
        spent, known = Counter[int](), Counter[int]()
        values = yield from self._reader.values(prepared, spent, known)
        return [
            ScoreResult(tuple(q_values[i] for i in request.index), spent[owner], known[owner])
            for owner, (request, q_values) in enumerate(zip(prepared, values, strict=True))
        ]

    def prepare_history(self, request: ScoreRequest) -> tuple[str, list[int]] | None:
        """The tokens of a history without candidates; None for a classifier."""
        return self._naive.prepare_history(request)

    def read_ahead(
        self, prepared: tuple[str, list[int]], *, begin: Callable[[int], None]
    ) -> Iterator[None]:
        """Read a history into the cache; see `qguide.qnet.device.scoring_worker`."""
        models = self._reader.models
        return chain.from_iterable(one.read_ahead(prepared, begin=begin) for one in models)

    @property
    def cache(self) -> CacheUse:
        """Use of the states' cache now."""
        states = [model.states for model in self._reader.models]
        return CacheUse(sum(s.nbytes for s in states), sum(s.evictions for s in states))

    def close(self) -> None:
        """Let go of every history; it scores no more."""
        for model in self._reader.models:
            model.states.clear()


class _ValueReader:
    """Q of a value head at the candidates' last tokens."""

    def __init__(self, loaded: LoadedQNet, tokens_per_forward: int, cache_bytes: int) -> None:
        self._head = loaded.model.head
        self._trunk = FullSequenceModel(
            loaded.model.trunk,
            lambda outputs_AD, _: outputs_AD[-1].clone(),  # a view keeps the whole batch
            tokens_per_forward=tokens_per_forward,
            cache_bytes=cache_bytes,
        )
        self.models: tuple[FullSequenceModel[Any], ...] = (self._trunk,)

    @torch.inference_mode()
    def values(
        self, prepared: Sequence[RenderedRequest], spent: Counter[int], known: Counter[int]
    ) -> Slices[list[list[float]]]:
        hidden = yield from self._trunk.run(_continuations(prepared), spent, known)
        found = []
        for request, of_each in zip(prepared, hidden, strict=True):
            features_RF = head_features([request])
            features = None if features_RF is None else torch.from_numpy(features_RF)
            found.append(self._head(torch.stack(of_each), features).tolist())
        return found


class _LogprobReader:
    """The implicit Q, from the log-probabilities of the candidates' tokens in both models."""

    def __init__(self, loaded: LoadedImplicitQ, tokens_per_forward: int, cache_bytes: int) -> None:
        self._beta: float = loaded.model.config.beta
        self._policy, self._reference = self.models = tuple(
            FullSequenceModel(
                model,
                _logprobs_of,
                tokens_per_forward=tokens_per_forward,
                logits=True,
                cache_bytes=cache_bytes // 2,
            )
            for model in (loaded.model.policy, loaded.model.reference)
        )

    @torch.inference_mode()
    def values(
        self, prepared: Sequence[RenderedRequest], spent: Counter[int], known: Counter[int]
    ) -> Slices[list[list[float]]]:
        requests = _continuations(prepared)
        policies = yield from self._policy.run(requests, spent, known)
        references = yield from self._reference.run(requests, spent, known)
        return [
            [self._beta * fsum(_differences(*both)) for both in zip(*of_request, strict=True)]
            for of_request in zip(policies, references, strict=True)
        ]


def _continuations(prepared: Sequence[RenderedRequest]) -> list[Continuations]:
    return [
        Continuations(
            request.history,
            request.candidates,
            turns=[start for start, _ in request.action_spans],
            cache_salt=request.cache_salt,
        )
        for request in prepared
    ]


def _logprobs_of(logits_AV: Tensor, tail: list[int]) -> list[float]:
    """log pi of each token of a continuation, predicted at the token before it."""
    tokens_A = upload(tail, logits_AV.device)
    logprobs: list[float] = token_logprobs(logits_AV[:-1], tokens_A).tolist()
    return logprobs


def _differences(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(ours, theirs, strict=True)]
