"""Rows of tokens that hold the end of a history and several branches that go on from it.

Linear layers take such a row as it is, so that a history's new tokens and its candidates need one
forward pass, without padding. Attention has a mask. Recurrences and convolutions, which read tokens
in their order, run on the stem, and then on the branches as a batch behind copies of its state.
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import Signature
from itertools import accumulate, chain
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from qguide.qnet.engine.kernels import upload

_PER_TOKEN: Final = frozenset({"query", "key", "value", "g", "beta", "hidden_states", "dt", "B", "C"})
"""Names of a scan's arguments that have a value for each token; those of others are the same."""
_IDLE: Final = {"dt": -math.inf, "g": 0.0, "beta": 0.0}  # values with which a token leaves a state as it is
_STATES: Final = ("initial_state", "initial_states")
_FINAL: Final = ("output_final_state", "return_final_states")

Run = Callable[..., Any]


class _Active(threading.local):
    """The row of this thread's forward pass; None for ordinary batches."""

    row: "BranchRow | None" = None


this_thread = _Active()


class BranchRow:
    """Layout of one row: a `stem` of history behind `known` tokens, and the tokens of each branch, at least one.

    Attributes:
        states: by recurrence, (branches, …), those behind the branches.
        windows: by convolution, (branches, C, taps), what it remembers of them.
    """

    def __init__(self, stem: int, branches: Sequence[int], known: int, device: torch.device) -> None:
        self.stem = stem
        self.tokens = stem + sum(branches)
        self._branches = branches
        self._known = known
        self._starts = list(accumulate(branches[:-1], initial=stem)) if branches else []
        if self.forks:
            longest = max(branches)
            spans = list(zip(self._starts, branches, strict=True))
            # Padding repeats a branch's last token, and leaves states as they are.
            columns = [[start + min(i, length - 1) for i in range(longest)] for start, length in spans]
            self._columns = upload(columns, device)
            self._places = upload([m * longest + i for m, length in enumerate(branches) for i in range(length)], device)
            self._lengths_M1 = upload(branches, device)[:, None]
            self._padded = torch.arange(longest, device=device) >= self._lengths_M1
        self._windows: list[Tensor] = []
        self.states: list[Tensor] = []
        self.windows: list[Tensor] = []

    @property
    def positions(self) -> list[int]:
        """Positions of its tokens: those of each branch count on from the stem's."""
        end = self._known + self.stem
        spans = (range(end, end + length) for length in self._branches)
        return list(chain(range(self._known, end), *spans))

    @property
    def spans(self) -> list[range]:
        """Columns of the branches, behind those of what was read before."""
        starts = (self._known + start for start in self._starts)
        return [range(start, start + length) for start, length in zip(starts, self._branches, strict=True)]

    @property
    def forks(self) -> bool:
        """True if its tokens do not simply follow each other."""
        return len(self._branches) > 1 or bool(self._branches and self.stem)

    def read(self, *, ends: bool) -> list[int]:
        """Columns of the stem's last token and of all tokens of the branches, or their last."""
        stem = [self.stem - 1] if self.stem else []
        if not ends:
            return [*stem, *range(self.stem, self.tokens)]
        spans = zip(self._starts, self._branches, strict=True)
        return [*stem, *(start + length - 1 for start, length in spans)]

    def mask(self, device: torch.device) -> Tensor:
        """(1, 1, T, known + T), True where a token sees another."""
        branch_T = torch.zeros(self.tokens, dtype=torch.long)
        for number, (start, length) in enumerate(zip(self._starts, self._branches, strict=True)):
            branch_T[start : start + length] = number + 1
        mine_TT = (branch_T == 0) | (branch_T == branch_T[:, None])
        known_TP = torch.ones((self.tokens, self._known), dtype=torch.bool)
        return upload(torch.cat([known_TP, mine_TT.tril()], dim=1)[None, None], device)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within this, recurrences of this thread read the row by its layout, if it forks."""
        this_thread.row = self if self.forks else None
        try:
            yield
        finally:
            this_thread.row = None

    def scan(self, run: Run, signature: Signature, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """A recurrence's outputs at all tokens, and its state behind the stem."""
        given = signature.bind(*args, **kwargs).arguments
        given |= given.pop("kwargs", {})
        [state_name] = given.keys() & _STATES
        state = given[state_name]
        given |= dict.fromkeys(given.keys() & _FINAL, True)
        split = {name: given[name] for name in given.keys() & _PER_TOKEN}
        found = []
        if self.stem:
            stem = {name: values[:, : self.stem] for name, values in split.items()}
            output, state = run(**{**given, **stem})
            found.append(output)
        branches = {name: values[0, self._columns] for name, values in split.items()}
        for name in branches.keys() & _IDLE:
            padded = self._padded.view(*self._padded.shape, *[1] * (branches[name].ndim - 2))
            branches[name] = branches[name].masked_fill(padded, _IDLE[name])
        copies = state.expand(len(self._branches), *state.shape[1:])
        output, behind = run(**{**given, **branches, state_name: copies})
        self.states.append(behind)
        found.append(output.flatten(0, 1)[self._places][None])
        return torch.cat(found, dim=1), state

    def convolve(self, run: Run, hidden_states: Tensor, weight: Tensor, *args: Any, **kw: Any) -> Any:
        """A causal convolution at all tokens, (1, C, T)."""
        taps = weight.shape[-1]
        hidden_TC = hidden_states[0].T
        before = len(hidden_TC) - self.tokens  # what the history before has left
        end = before + self.stem
        window_KC = hidden_TC[max(0, end - taps) : end]
        window_KC = F.pad(window_KC, (0, 0, taps - len(window_KC), 0))
        self._windows.append(window_KC.T)
        found = []
        if self.stem:
            stem = run(hidden_states[..., :end], weight, *args, **kw)
            found.append(stem[..., -self.stem :].transpose(1, 2))
        copies_MKC = window_KC[1:].expand(len(self._branches), -1, -1)
        branches_MTC = torch.cat([copies_MKC, hidden_TC[before + self._columns]], dim=1)
        last_MK1 = (self._lengths_M1 - 1 + torch.arange(taps, device=branches_MTC.device))[..., None]
        self.windows.append(branches_MTC.take_along_dim(last_MK1, dim=1).transpose(1, 2))
        mixed_MTC = run(branches_MTC.transpose(1, 2), weight, *args, **kw).transpose(1, 2)
        found.append(mixed_MTC[:, taps - 1 :].flatten(0, 1)[self._places][None])
        return torch.cat(found, dim=1).transpose(1, 2)

    def leave(self, cache: Any) -> None:
        """Put what convolutions remember of the stem in the place of the row's last tokens."""
        if not self.forks:
            return
        layers = [x for x in cache.layers if isinstance(x, LinearAttentionCacheLayerMixin)]
        states = [x for layer in layers for x in layer.conv_states.values() if x is not None]
        for state, window in zip(states, self._windows, strict=True):
            state.copy_(window)
