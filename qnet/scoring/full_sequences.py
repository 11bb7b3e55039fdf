"""Full sequences in place of packed ones, for trunks with a memory beside attention.

Hybrid trunks (convolutions, state spaces, linear attention) remember in a state that a packed row
cannot divide among conversations. That state is kept behind each history, where the architecture
goes on from one; where it does not, each request's history is computed anew.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from qguide.qnet.engine.context_length import context_length
from qguide.qnet.engine.full_sequences import Continuations, FullSequenceModel
from qguide.qnet.engine.kernels import upload
from qguide.qnet.models.checkpoint import LoadedImplicitQ, LoadedQNet
from qguide.qnet.models.implicit_q import token_logprobs
from qguide.qnet.scoring import implicit_q
from qguide.qnet.scoring.rendered_requests import RenderedRequest, RenderingScorer, request_renderer
from qguide.qnet.scoring.value_head import features_of
from qguide.qnet.sliced_scorer import Slices
from qguide.qnet.types import ScoreResult


class FullSequenceScorer(RenderingScorer):
    """Serves a Q model whose architecture cannot be packed; equals its naive scorer.

    Attributes:
        keeps_histories: a history that goes on costs its new tokens alone.
    """

    def __init__(self, loaded: LoadedQNet | LoadedImplicitQ, *, tokens_per_forward: int, cache_bytes: int = 0) -> None:
        self._reader: _ValueReader | _LogprobReader
        match loaded:
            case LoadedQNet():
                context = context_length(loaded.model.trunk.config)
                self._reader = _ValueReader(loaded, tokens_per_forward, cache_bytes)
                requests = request_renderer(loaded, context, loaded.model.head.features)
            case LoadedImplicitQ():
                configs = (loaded.model.policy.config, loaded.model.reference.config)
                self._reader = _LogprobReader(loaded, tokens_per_forward, cache_bytes)
                requests = implicit_q.request_renderer(loaded, min(map(context_length, configs)))
        super().__init__(requests, self._reader.models)
        ways = {model.way for model in self._reader.models}
        self.keeps_histories = self.reads_ahead = ways <= {"one_row", "shared_history"}

    def slices(self, prepared: Sequence[RenderedRequest]) -> Slices[list[ScoreResult]]:
        """The results of `score`, one forward pass after the other."""
        spent, known = Counter[int](), Counter[int]()
        values = yield from self._reader.values(prepared, spent, known)
        return [
            ScoreResult(tuple(q_values[i] for i in request.index), spent[owner], known[owner])
            for owner, (request, q_values) in enumerate(zip(prepared, values, strict=True))
        ]


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
            found.append(self._head(torch.stack(of_each), features_of([request])).tolist())
        return found


class _LogprobReader:
    """The implicit Q, from the log-probabilities of the candidates' tokens in both models."""

    def __init__(self, loaded: LoadedImplicitQ, tokens_per_forward: int, cache_bytes: int) -> None:
        self._beta: float = loaded.model.config.beta
        self._policy, self._reference = self.models = tuple(
            FullSequenceModel(
                model, _logprobs_of, tokens_per_forward=tokens_per_forward, logits=True, cache_bytes=cache_bytes // 2
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
            implicit_q.implicit_values(self._beta, *both)
            for both in zip(_numbers(policies), _numbers(references), strict=True)
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


def _logprobs_of(logits_AV: Tensor, tail: list[int]) -> Tensor:
    """log pi of each token of a continuation, predicted at the token before it."""
    return token_logprobs(logits_AV[:-1], upload(tail, logits_AV.device))


def _numbers(logprobs: Sequence[Sequence[Tensor]]) -> list[list[list[float]]]:
    """The values of each request's continuations, by one copy, for which the host waits."""
    every = list(chain(*logprobs))
    values = iter(torch.cat(every).tolist() if every else ())
    return [[list(islice(values, len(logprobs_A))) for logprobs_A in of_request] for of_request in logprobs]
