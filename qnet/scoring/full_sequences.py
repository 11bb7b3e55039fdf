"""Full sequences in place of packed ones, for trunks with a memory beside attention.

Hybrid trunks (convolutions, state spaces, linear attention) remember in a state that a packed row
cannot divide among conversations. Each request's history is computed anew, and nothing is kept.
"""

from collections import Counter
from collections.abc import Sequence
from math import fsum
from typing import Protocol

import torch
from torch import Tensor

from qguide.qnet.engine.full_sequences import Continuations, FullSequenceModel
from qguide.qnet.engine.uploads import upload
from qguide.qnet.models.checkpoint import LoadedImplicitQ, LoadedQNet
from qguide.qnet.models.implicit_q import token_logprobs
from qguide.qnet.scoring.implicit_q import NaiveImplicitScorer
from qguide.qnet.scoring.rendered_requests import RenderedRequest, head_features
from qguide.qnet.scoring.value_head import NaiveScorer
from qguide.qnet.sliced_scorer import CachingScorer
from qguide.qnet.types import ScoreRequest, ScoreResult, Slices


class _Reader(Protocol):
    """Values of the distinct candidates of each request."""

    def values(
        self, prepared: Sequence[RenderedRequest], spent: Counter[int]
    ) -> Slices[list[list[float]]]: ...


class FullSequenceScorer(CachingScorer):
    """Serves a Q model whose architecture cannot be packed; equals its naive scorer."""

    def __init__(self, loaded: LoadedQNet | LoadedImplicitQ, *, tokens_per_forward: int) -> None:
        self._naive: NaiveScorer | NaiveImplicitScorer
        self._reader: _Reader
        match loaded:
            case LoadedQNet():
                self._naive = NaiveScorer(loaded)
                self._reader = _ValueReader(loaded, tokens_per_forward)
            case LoadedImplicitQ():
                self._naive = NaiveImplicitScorer(loaded)
                self._reader = _LogprobReader(loaded, tokens_per_forward)
        self.name = loaded.name
        self.context = self._naive.context
        self.reads_observation = self._naive.reads_observation

    def prepare(self, request: ScoreRequest) -> RenderedRequest:
        """The request's tokens; raises what `score` does."""
        return self._naive.prepare(request)

    def slices(self, prepared: Sequence[RenderedRequest]) -> Slices[list[ScoreResult]]:
        """The results of `score`, one forward pass after the other."""
        spent = Counter[int]()
        values = yield from self._reader.values(prepared, spent)
        return [
            ScoreResult(tuple(q_values[i] for i in request.index), computed_tokens=spent[owner])
            for owner, (request, q_values) in enumerate(zip(prepared, values, strict=True))
        ]


class _ValueReader:
    """Q of a value head at the candidates' last tokens."""

    def __init__(self, loaded: LoadedQNet, tokens_per_forward: int) -> None:
        self._head = loaded.model.head
        self._trunk = FullSequenceModel(
            loaded.model.trunk,
            lambda outputs_AD, _: outputs_AD[-1].clone(),  # a view keeps the whole batch
            tokens_per_forward=tokens_per_forward,
        )

    @torch.inference_mode()
    def values(
        self, prepared: Sequence[RenderedRequest], spent: Counter[int]
    ) -> Slices[list[list[float]]]:
        hidden = yield from self._trunk.run(_continuations(prepared), spent)
        found = []
        for request, of_each in zip(prepared, hidden, strict=True):
            features_RF = head_features([request])
            features = None if features_RF is None else torch.from_numpy(features_RF)
            found.append(self._head(torch.stack(of_each), features).tolist())
        return found


class _LogprobReader:
    """The implicit Q, from the log-probabilities of the candidates' tokens in both models."""

    def __init__(self, loaded: LoadedImplicitQ, tokens_per_forward: int) -> None:
        self._beta: float = loaded.model.config.beta
        self._policy, self._reference = (
            FullSequenceModel(
                model, _logprobs_of, tokens_per_forward=tokens_per_forward, logits=True
            )
            for model in (loaded.model.policy, loaded.model.reference)
        )

    @torch.inference_mode()
    def values(
        self, prepared: Sequence[RenderedRequest], spent: Counter[int]
    ) -> Slices[list[list[float]]]:
        requests = _continuations(prepared)
        policies = yield from self._policy.run(requests, spent)
        references = yield from self._reference.run(requests, spent)
        return [
            [self._beta * fsum(_differences(*both)) for both in zip(*of_request, strict=True)]
            for of_request in zip(policies, references, strict=True)
        ]


def _continuations(prepared: Sequence[RenderedRequest]) -> list[Continuations]:
    return [Continuations(request.history, request.candidates) for request in prepared]


def _logprobs_of(logits_AV: Tensor, tail: list[int]) -> list[float]:
    """log pi of each token of a continuation, predicted at the token before it."""
    tokens_A = upload(tail, logits_AV.device)
    logprobs: list[float] = token_logprobs(logits_AV[:-1], tokens_A).tolist()
    return logprobs


def _differences(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(ours, theirs, strict=True)]
