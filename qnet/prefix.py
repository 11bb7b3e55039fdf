"""What a score request needs computed: its tokens, and their places after the shared history."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qnet.attention import Piece
from qnet.errors import HistoryTooLongError, InvalidCandidatesError
from qnet.kvstore import Branch, Entry
from qnet.rendering import Renderer
from qnet.types import ScoreRequest


@dataclass(frozen=True, slots=True)
class RenderedRequest:
    """A request as tokens, equal candidates once.

    Attributes:
        index: which of `candidates` each of the request's candidates is.
    """

    history: list[int]
    candidates: list[list[int]]
    index: list[int]

    @property
    def sequences(self) -> Iterator[list[int]]:
        """History and candidate of each of the request's candidates, equal ones repeated."""
        return (self.history + self.candidates[i] for i in self.index)

    def new_tokens(self, known: int) -> int:
        """What goes through a trunk that knows the history's first `known` tokens."""
        return len(self.history) - known + sum(map(len, self.candidates))


def render_request(
    renderer: Renderer, request: ScoreRequest, *, name: str, context: int
) -> RenderedRequest:
    """The request's tokens for the Q model `name`, which takes `context` of them.

    Raises:
        HistoryTooLongError: history and candidate exceed the context.
        InvalidCandidatesError: the request has no candidates.
    """
    require_candidates(request)
    history = renderer.encode_history(request.history)
    encoded = [tuple(renderer.encode_candidate(c)) for c in request.candidates]
    longest = len(history) + max(map(len, encoded))
    if longest > context:
        raise HistoryTooLongError(
            f"history and candidate have {longest:,} tokens; {name} takes {context:,}; "
            "shorten the history"
        )
    distinct = {token_ids: i for i, token_ids in enumerate(dict.fromkeys(encoded))}
    return RenderedRequest(history, [list(t) for t in distinct], [distinct[t] for t in encoded])


def require_candidates(request: ScoreRequest) -> None:
    """Refuse a request that asks for nothing.

    Raises:
        InvalidCandidatesError: the request has no candidates.
    """
    if not request.candidates:
        raise InvalidCandidatesError("there are 0 candidates to score; give at least 1")


def candidates_piece(
    request: RenderedRequest, entry: Entry, *, read: Sequence[int], like: Tensor
) -> Piece:
    """All candidates of a request after its history, blind to each other.

    Args:
        read: which of their tokens' outputs are wanted, counted from the first candidate's first.
        like: a tensor of the model's dtype on its device.
    """
    start = len(request.history)
    lengths = [len(candidate) for candidate in request.candidates]
    return Piece(
        slab=entry.slab,
        token_ids=[token for candidate in request.candidates for token in candidate],
        positions=[start + i for length in lengths for i in range(length)],
        column=start,
        context=start,
        bias=_blind_to_each_other(lengths).to(like),
        read=tuple(read),
    )


def remember(request: RenderedRequest, entry: Entry) -> None:
    """The history is known now, and each candidate as a branch that the next step may take."""
    entry.token_ids = request.history
    entry.branches = []
    column = len(request.history)
    for candidate in request.candidates:
        columns = list(range(column, column + len(candidate)))
        entry.branches.append(Branch(candidate, columns))
        column += len(candidate)


def _blind_to_each_other(lengths: Sequence[int]) -> Tensor:
    """(T, T): 0 where a token sees another of its own candidate, up to itself; else -inf."""
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    seen = (owner[:, None] == owner[None, :]).tril()
    return torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))
