"""Q(s, a) at the candidates' last tokens: the plain reference and the fast scorer.

`NaiveScorer` runs every full sequence alone. `SharedPrefixScorer` must equal it within float
tolerance and computes only what is new: the history's unknown tokens once, then the distinct
candidates side by side, each seeing the history and itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qnet.attention import Piece
from qnet.checkpoint import LoadedQNet
from qnet.errors import HistoryTooLongError, InvalidCandidatesError
from qnet.kvstore import Branch, Entry
from qnet.packed import PackedModel, context_length, history_piece, q_of
from qnet.types import ScoreRequest, ScoreResult

DEFAULT_CACHE_BYTES = 2 * 1024**3
DEFAULT_TOKENS_PER_FORWARD = 2048


@dataclass(frozen=True, slots=True)
class _Rendered:
    """A request as tokens, equal candidates once.

    Attributes:
        index: which of `candidates` each of the request's candidates is.
    """

    history: list[int]
    candidates: list[list[int]]
    index: list[int]


class NaiveScorer:
    """Every full sequence alone, nothing kept: what the fast scorer is tested against."""

    def __init__(self, loaded: LoadedQNet) -> None:
        self.name = loaded.name
        self._loaded = loaded
        self._context = context_length(loaded.model.trunk.config)

    @torch.inference_mode()
    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate; every candidate costs its whole sequence.

        Raises:
            HistoryTooLongError: history and candidate exceed the trunk's context.
            InvalidCandidatesError: a request has no candidates.
        """
        return [self._score(request) for request in requests]

    def _score(self, request: ScoreRequest) -> ScoreResult:
        rendered = _render(self._loaded, request, self._context)
        sequences = [rendered.history + rendered.candidates[i] for i in rendered.index]
        q_values = tuple(self._q(token_ids) for token_ids in sequences)
        return ScoreResult(q_values, computed_tokens=sum(map(len, sequences)))

    def _q(self, token_ids: list[int]) -> float:
        model = self._loaded.model
        q_BT = model(torch.tensor([token_ids], device=model.device))
        return float(q_BT[0, -1])


class SharedPrefixScorer:
    """Histories once and kept between steps, distinct candidates side by side, one batch.

    Args:
        cache_bytes: for the histories kept between steps; with many episodes in lockstep it has
            to hold all of them, or every step starts cold.
        tokens_per_forward: longest packed row of one forward pass.
    """

    def __init__(
        self,
        loaded: LoadedQNet,
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        tokens_per_forward: int = DEFAULT_TOKENS_PER_FORWARD,
    ) -> None:
        self.name = loaded.name
        self._loaded = loaded
        self._packed = PackedModel(
            loaded.model.trunk,
            q_of(loaded.model),
            cache_bytes=cache_bytes,
            tokens_per_forward=tokens_per_forward,
        )

    @torch.inference_mode()
    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate, in the requests' order.

        Raises:
            HistoryTooLongError: history and candidate exceed the trunk's context.
            InvalidCandidatesError: a request has no candidates.
        """
        if not requests:
            return []
        rendered = [_render(self._loaded, r, self._packed.context) for r in requests]
        with self._packed.lease([r.history for r in rendered], spare=0) as entries:
            known = [len(entry.token_ids) for entry in entries]
            q_values = self._packed.run(_pieces(rendered, entries, self._loaded.model)).tolist()
            for request, entry in zip(rendered, entries, strict=True):
                _remember(request, entry)
        return _results(rendered, known, q_values)


class ScriptedScorer:
    """A scorer without a model, for demos and tests: Q of the first keyword that is said.

    Args:
        q_of_keyword: looked up in its order; a candidate with none of them has `otherwise`.
    """

    def __init__(
        self,
        q_of_keyword: Mapping[str, float],
        *,
        otherwise: float = 0.0,
        name: str = "scripted",
    ) -> None:
        self.name = name
        self._q_of_keyword = dict(q_of_keyword)
        self._otherwise = otherwise

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate; a word counts as a token."""
        return [self._score(request) for request in requests]

    def _score(self, request: ScoreRequest) -> ScoreResult:
        said = [message.content for message in request.candidates]
        words = sum(len(m.content.split()) for m in (*request.history, *request.candidates))
        return ScoreResult(tuple(map(self._q, said)), computed_tokens=words)

    def _q(self, said: str) -> float:
        found = (q for keyword, q in self._q_of_keyword.items() if keyword in said)
        return next(found, self._otherwise)


def _render(loaded: LoadedQNet, request: ScoreRequest, context: int) -> _Rendered:
    if not request.candidates:
        raise InvalidCandidatesError("there are 0 candidates to score; give at least 1")
    history = loaded.renderer.encode_history(request.history)
    encoded = [tuple(loaded.renderer.encode_candidate(c)) for c in request.candidates]
    longest = len(history) + max(map(len, encoded))
    if longest > context:
        raise HistoryTooLongError(
            f"history and candidate have {longest:,} tokens; {loaded.name} takes {context:,}; "
            "shorten the history"
        )
    distinct = {token_ids: i for i, token_ids in enumerate(dict.fromkeys(encoded))}
    return _Rendered(history, [list(t) for t in distinct], [distinct[t] for t in encoded])


def _pieces(
    requests: Sequence[_Rendered], entries: Sequence[Entry], like: torch.nn.Module
) -> list[Piece]:
    parameter = next(like.parameters())
    pieces: list[Piece] = []
    for request, entry in zip(requests, entries, strict=True):
        pieces.append(history_piece(entry, request.history))
        pieces.append(_candidates_piece(request, entry, parameter))
    return pieces


def _candidates_piece(request: _Rendered, entry: Entry, like: Tensor) -> Piece:
    """All candidates of a request after its history, blind to each other."""
    start = len(request.history)
    lengths = [len(candidate) for candidate in request.candidates]
    ends = torch.tensor(lengths).cumsum(0).tolist()
    return Piece(
        slab=entry.slab,
        token_ids=[token for candidate in request.candidates for token in candidate],
        positions=[start + i for length in lengths for i in range(length)],
        column=start,
        context=start,
        bias=_blind_to_each_other(lengths).to(like),
        read=tuple(end - 1 for end in ends),
    )


def _blind_to_each_other(lengths: Sequence[int]) -> Tensor:
    """(T, T): 0 where a token sees another of its own candidate, up to itself; else -inf."""
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    seen = (owner[:, None] == owner[None, :]).tril()
    return torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))


def _remember(request: _Rendered, entry: Entry) -> None:
    """The history is known now, and each candidate as a branch that the next step may take."""
    entry.token_ids = request.history
    entry.branches = []
    column = len(request.history)
    for candidate in request.candidates:
        columns = list(range(column, column + len(candidate)))
        entry.branches.append(Branch(candidate, columns))
        column += len(candidate)


def _results(
    requests: Sequence[_Rendered], known: Sequence[int], q_values: Sequence[float]
) -> list[ScoreResult]:
    results = []
    start = 0
    for request, cached in zip(requests, known, strict=True):
        mine = q_values[start : start + len(request.candidates)]
        start += len(request.candidates)
        new = len(request.history) - cached + sum(map(len, request.candidates))
        results.append(ScoreResult(tuple(mine[i] for i in request.index), new, cached))
    return results
