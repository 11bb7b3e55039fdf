"""Feature hashing with a salt (Weinberger et al., 2009): families of features as a sparse vector.

A family is a set of features of one kind, such as "the action beside each word of the task". Its
vector has length 1, however many words there are, so that a document of a thousand words weighs as
much as a task of five. A feature's sign is hashed too, so that collisions cancel out in the mean.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Sparse = tuple[NDArray[np.int32], NDArray[np.float32]]
"""Indices and values of a vector; an index may occur more than once."""

_CACHED_WORDS: Final = 1 << 16
_MOST_CHARACTERS: Final = 1_024
_MULTIPLIERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


class Hasher:
    """Hashes of texts under a salt, and families of them as one sparse vector.

    Args:
        salt: without it nobody can tell which words the weights of a feature belong to.
        bits: the vector has 2^bits places.
    """

    def __init__(self, salt: bytes = b"", *, bits: int = 20) -> None:
        self.salt, self.bits = salt[:64], bits
        self._hash = lru_cache(_CACHED_WORDS)(
            lambda text: int.from_bytes(
                blake2b(text.encode(errors="replace"), digest_size=8, key=self.salt).digest(), "big"
            )
        )

    def hashes(self, texts: Iterable[str]) -> Hashes:
        """Hash of each text."""
        return np.fromiter((self._hash(text[:_MOST_CHARACTERS]) for text in texts), np.uint64)

    def sparse(self, families: Sequence[Hashes]) -> Sparse:
        """One vector of all families, each of length 1; an empty family adds nothing."""
        filled = [np.unique(family) for family in families if family.size]
        if not filled:
            return np.zeros(0, np.int32), np.zeros(0, np.float32)
        lengths = np.array([family.size for family in filled])
        hashed = np.concatenate(filled)
        indices = (hashed >> np.uint64(64 - self.bits)).astype(np.int32)
        signs = np.where(hashed & np.uint64(1), np.float32(1), np.float32(-1))
        return indices, signs * np.repeat(lengths, lengths).astype(np.float32) ** np.float32(-0.5)


def crossed(left: Hashes, right: Hashes) -> Hashes:
    """Hash of every pair of a left and a right one; the order matters."""
    with np.errstate(over="ignore"):
        return _mixed(left[:, None] * _ODD + _mixed(right)[None, :]).ravel()


def _mixed(hashes: Hashes) -> Hashes:
    """A bijection in which every bit depends on every bit (splitmix64)."""
    mixed = hashes
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        mixed = (mixed ^ (mixed >> shift)) * multiplier
    return mixed ^ (mixed >> _SHIFTS[-1])
