"""What a score request needs computed: its tokens, and their places after the shared history."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qnet.attention import Piece
from qnet.errors import HistoryTooLongError, InvalidCandidatesError
from qnet.kvstore import Branch, Entry
from qnet.rendering import Renderer
from qnet.tokentree import TokenTree
from qnet.types import ScoreRequest


@dataclass(frozen=True, slots=True)
class RenderedRequest:
    """A request as tokens, equal candidates once.

    Attributes:
        index: which of `candidates` each of the request's candidates is.
        tree: the tokens of the candidates, what several begin with once.
        paths: where each of `candidates` has its tokens in the tree.
    """

    history: list[int]
    candidates: list[list[int]]
    index: list[int]
    tree: TokenTree
    paths: list[list[int]]

    @property
    def sequences(self) -> Iterator[list[int]]:
        """History and candidate of each of the request's candidates, equal ones repeated."""
        return (self.history + self.candidates[i] for i in self.index)

    def new_tokens(self, known: int) -> int:
        """What goes through a trunk that knows the history's first `known` tokens."""
        return len(self.history) - known + len(self.tree)


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
    tree = TokenTree()
    return RenderedRequest(
        history,
        candidates=[list(token_ids) for token_ids in distinct],
        index=[distinct[token_ids] for token_ids in encoded],
        tree=tree,
        paths=[tree.add(token_ids) for token_ids in distinct],
    )


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
    """All candidates of a request after its history, as one tree: none sees another.

    Args:
        read: the tokens of the tree whose outputs are wanted.
        like: a tensor of the model's dtype on its device.
    """
    start, tree = len(request.history), request.tree
    return Piece(
        slab=entry.slab,
        token_ids=tree.token_ids,
        positions=[start + depth for depth in tree.depths],
        column=start,
        context=start,
        bias=_hiding(tree).to(like),
        read=tuple(read),
    )


def remember(request: RenderedRequest, entry: Entry) -> None:
    """The history is known now, and each candidate as a branch that the next step may take."""
    entry.token_ids = request.history
    start = len(request.history)
    entry.branches = [
        Branch(candidate, [start + index for index in path])
        for candidate, path in zip(request.candidates, request.paths, strict=True)
    ]


def _hiding(tree: TokenTree) -> Tensor:
    """(T, T): 0 where a token sees another; else -inf."""
    seen_TT = tree.visible()
    return torch.zeros(seen_TT.shape).masked_fill_(~seen_TT, float("-inf"))
