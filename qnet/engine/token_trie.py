"""A trie of token sequences: each distinct prefix once.

Packed into one row, in which each token sees only the tokens before it on its own path, the
sequences cost their distinct tokens, and each has the outputs that it has alone.
"""

from array import array
from collections.abc import Iterator, MutableSequence, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class TokenTrie:
    """The tokens of a trie, parents before children.

    Attributes:
        token_ids: (T,).
        depths: (T,) how many tokens stand before each on its path.
        before: (T,) index of the token that each follows; -1 for a first one.
    """

    token_ids: MutableSequence[int] = field(default_factory=list)
    depths: MutableSequence[int] = field(default_factory=list)
    before: MutableSequence[int] = field(default_factory=list)
    _index: dict[tuple[int, int], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.token_ids)

    def add(self, token_ids: Sequence[int]) -> list[int]:
        """Add a path; returns the index of each of its tokens."""
        return self.extend(-1, token_ids)

    def extend(self, index: int, token_ids: Sequence[int]) -> list[int]:
        """Add what follows the token at an index; returns the index of each token added."""
        indices = []
        for token in token_ids:
            found = self._index.get((index, token))
            depth = self.depths[index] + 1 if index >= 0 else 0
            index = self._append(index, token, depth) if found is None else found
            indices.append(index)
        return indices

    def path_to(self, index: int) -> list[int]:
        """Indices of the tokens from the first one to `index`."""
        path = [index]
        while (before := self.before[path[-1]]) >= 0:
            path.append(before)
        return path[::-1]

    def finish(self) -> None:
        """Take a quarter of the memory, now that no path is added any more."""
        # The trees of a whole training set are in memory at once.
        self.token_ids, self.depths, self.before = (
            array("q", numbers) for numbers in (self.token_ids, self.depths, self.before)
        )
        self._index = {}

    def new_tokens(self, token_ids: Sequence[int]) -> int:
        """Number of a path's tokens that are not in the trie yet."""
        known = sum(1 for _ in self._walk(token_ids))
        return len(token_ids) - known

    def visible(self, tokens: range | None = None) -> NDArray[np.bool_]:
        """(T, T): whether a token (row) sees another (column), of all or of these `tokens`."""
        tokens = tokens or range(len(self))
        # Parents come before their children, so a token sees what the token before it on its path
        # sees, and itself: one row is copied from another, and no path is walked twice.
        seen_TT = np.zeros((len(tokens), len(tokens)), dtype=bool)
        for row, index in enumerate(tokens):
            before = self.before[index] - tokens.start
            if before >= 0:
                seen_TT[row] = seen_TT[before]
            seen_TT[row, row] = True
        return seen_TT

    def ends(self) -> list[int]:
        """(T,) one past the last token that comes after each, where paths were added in order."""
        ends = [index + 1 for index in range(len(self))]
        for index in reversed(range(len(self))):
            before = self.before[index]
            if before >= 0:
                ends[before] = max(ends[before], ends[index])
        return ends

    def _walk(self, token_ids: Sequence[int]) -> Iterator[int]:
        """Indices of a path's tokens, up to the first that is not in the trie."""
        at = -1
        for token in token_ids:
            found = self._index.get((at, token))
            if found is None:
                return
            at = found
            yield at

    def _append(self, before: int, token: int, depth: int) -> int:
        index = self._index[before, token] = len(self.token_ids)
        self.token_ids.append(token)
        self.depths.append(depth)
        self.before.append(before)
        return index


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of leading tokens that two sequences share."""
    # Halving: slices are compared in C, which beats a loop over tokens in Python by far.
    equal, end = 0, min(len(one), len(other))
    while equal < end:
        middle = (equal + end + 1) // 2
        if one[equal:middle] == other[equal:middle]:
            equal = middle
        else:
            end = middle - 1
    return equal
