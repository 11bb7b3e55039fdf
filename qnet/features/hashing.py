"""Feature hashing with a salt (Weinberger et al., 2009): families of features as a sparse vector.

A family is a set of features of one kind, such as "the action beside each word of the task". Its
vector has length 1, however many words there are, so that a document of a thousand words weighs as
much as a task of five. A feature's sign is hashed too, so that collisions cancel out in the mean.
Features of words and of facts lie in two halves of the places, because each is learned by itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qguide.qnet.features.words import generalised, without_numbers

Hashes = NDArray[np.uint64]
Sparse = tuple[NDArray[np.int32], NDArray[np.float32]]
"""Indices and values of a vector; an index may occur more than once."""

_CACHED_WORDS: Final = 1 << 16
_CACHED_LABELS: Final = 1 << 12
_CACHED_CLAUSES: Final = 1 << 14
_MOST_CHARACTERS: Final = 1_024
_MULTIPLIERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Families:
    """Families of features, one after the other.

    Attributes:
        hashes: of their features, which are different within a family.
        values: as many, by which each family has length 1.
    """

    hashes: Hashes
    values: NDArray[np.float32]

    def beside(self, left: Hashes) -> "Families":
        """The families of every pair of one of these features and one of `left`."""
        values = np.tile(self.values * np.float32(max(len(left), 1) ** -0.5), len(left))
        return Families(_paired(left, self._mixed), values)

    @cached_property
    def _mixed(self) -> Hashes:
        """Once for all candidates of a state."""
        return _mixed(self.hashes)


TASK: Final = "task"
FRAME: Final = "frame"
NUMBER: Final = "number"
FACT: Final = "fact"
TASK_FACT: Final = "task fact"
REPEATED: Final = "repeated"

WORDS: Final = 0
FACTS: Final = 1
"""Halves of the places of a vector."""

PATTERNS: Final = ("pattern", "pattern 2", "pattern 3", "pattern 4")
"""Of sentences in which a word varies, found in so many passes: each reads what the one before has generalised."""


def entry(text: str, kind: str = "") -> str:
    """Text under which the vocabulary keeps a word or a message of a kind.

    A long one is kept by its beginning and its end, because messages may begin with the same instructions.
    """
    half = _MOST_CHARACTERS // 2 - len(TASK + FRAME)
    whole = text if len(text) <= 2 * half else f"{text[:half]}{text[-half:]}"
    return f"{kind}\0{whole}"


QUANTILES: Final = 4
"""Quantiles that tell how large a number is."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Quantiles of the numbers that were read after a word, in all tasks and in those with a word.

    Attributes:
        places: (k,) hashes of both words, different ones.
        quantiles: (k, 4) of the numbers there, ascending.
    """

    places: Hashes
    quantiles: NDArray[np.float32]


class Hasher:
    """Hashes of texts under a salt, and families of them as one sparse vector.

    Args:
        salt: without it nobody can tell which words the weights of a feature belong to.
        bits: the vector has 2^bits places.
        vocabulary: hashes of the words and facts of states that are read, and of what tells sentences of one
            template; None reads all words, and each sentence is a template of its own.
        sizes: by which a number is large or small; None tells none.

    Attributes:
        template: the words of a clause with `ANY_WORD` for each that varies, and `ANY_NUMBER` for numbers.
    """

    def __init__(
        self, salt: bytes = b"", *, bits: int = 20, vocabulary: Hashes | None = None, sizes: Sizes | None = None
    ) -> None:
        self.salt, self.bits, self.vocabulary, self.sizes = salt[:64], bits, vocabulary, sizes
        self._quantiles: dict[int, list[float]] = (
            {} if sizes is None else dict(zip(sizes.places.tolist(), sizes.quantiles.tolist(), strict=True))
        )
        self._usual = lru_cache(_CACHED_LABELS)(self._usual_quantiles)
        self._known = None if vocabulary is None else frozenset(vocabulary.tolist())
        self.template = lru_cache(_CACHED_CLAUSES)(self._template_of)
        self._hash = lru_cache(_CACHED_WORDS)(
            lambda text: int.from_bytes(
                blake2b(text.encode(errors="replace"), digest_size=8, key=self.salt).digest(), "big"
            )
        )

    def reading(self, vocabulary: Hashes, sizes: Sizes | None = None) -> "Hasher":
        """The same with a vocabulary, and with sizes of numbers."""
        return Hasher(self.salt, bits=self.bits, vocabulary=vocabulary, sizes=sizes)

    def hashes(self, texts: Iterable[str]) -> Hashes:
        """Hash of each text."""
        return np.array([self._hash(text[:_MOST_CHARACTERS]) for text in texts], np.uint64)

    def known(self, words: Iterable[str], kind: str = "") -> list[str]:
        """The words of a state that are in the vocabulary of their kind: plain, `TASK`, `FACT` or `TASK_FACT`."""
        if self._known is None:
            return list(words)
        return [word for word in words if self._hash(entry(word, kind)) in self._known]

    def words(self, words: Iterable[str], kind: str = "") -> Hashes:
        """Hash of each word of a state that is in the vocabulary."""
        return self.hashes(self.known(words, kind))

    def frames(self, text: str) -> bool:
        """True for a message with which every episode begins."""
        return self._has(FRAME, text)

    def _has(self, kind: str, text: str) -> bool:
        return self._known is not None and self._hash(entry(text, kind)) in self._known

    def _template_of(self, clause: tuple[str, ...]) -> tuple[str, ...]:
        template = without_numbers(clause)
        for kind in PATTERNS:
            before, template = template, generalised(template, partial(self._has, kind))
            if template == before:
                break
        return template

    def size(self, label: str, number: float, task: tuple[str, ...]) -> int | None:
        """The number of quantiles that a number reaches; None where none are known.

        Of all tasks and of those with one of these words, those whose numbers differ least: what is
        much for one machine may be little for another.
        """
        usual = self._usual(label, task)
        # In the precision of the quantiles, which are numbers that were read themselves.
        return None if usual is None else sum(float(np.float32(number)) >= one for one in usual)

    def _usual_quantiles(self, label: str, task: tuple[str, ...]) -> list[float] | None:
        # Without quantiles of all tasks there are none of some.
        if self._hash(number_place(label, "")) not in self._quantiles:
            return None
        places = (self._hash(number_place(label, word)) for word in ("", *task))
        known = [self._quantiles[place] for place in places if place in self._quantiles]
        return min(known, key=lambda quantiles: quantiles[-1] - quantiles[0])

    def sparse(self, families: Sequence[Families], half: int = WORDS) -> Sparse:
        """One vector of all families, each of length 1, in a half of the places; an empty family adds nothing."""
        hashed = np.concatenate([each.hashes for each in families])
        values = np.concatenate([each.values for each in families])
        indices = (hashed >> np.uint64(65 - self.bits)).astype(np.int32) + np.int32(half << (self.bits - 1))
        return indices, np.where(hashed & np.uint64(1), values, -values)


def number_place(label: str, word: str) -> str:
    """Text under which the quantiles are kept of numbers after a label, in tasks with a word."""
    return entry(f"{label}\0{word}", NUMBER)


def families_of(named: Mapping[str, Hashes], hasher: Hasher) -> Families:
    """Families by their names, which tell equal hashes of two of them apart."""
    lengths = np.array([len(hashes) for hashes in named.values()])
    names = np.repeat(hasher.hashes(named), lengths)
    hashes = np.concatenate(list(named.values()))
    values = np.repeat(np.maximum(lengths, 1) ** -0.5, lengths).astype(np.float32)
    return Families(_mixed(names * _ODD + hashes), values)


def mean_of(vectors: Sequence[Sparse], weights: Sequence[float]) -> Sparse:
    """Weighted mean of some vectors."""
    total = sum(weights)
    return joined(*((i, v * np.float32(w / total)) for (i, v), w in zip(vectors, weights, strict=True)))


def joined(*vectors: Sparse) -> Sparse:
    """The sum of some vectors."""
    return np.concatenate([indices for indices, _ in vectors]), np.concatenate([values for _, values in vectors])


def crossed(left: Hashes, right: Hashes) -> Hashes:
    """Hash of every pair of a left and a right one; the order matters."""
    return _paired(left, _mixed(right))


def pairs_of(hashes: Hashes) -> Hashes:
    """Hash of every pair of different ones, in no order."""
    ordered = np.sort(hashes)
    left, right = _triangle(len(ordered))
    return _mixed(ordered[left] * _ODD + _mixed(ordered)[right])


@lru_cache(64)
def _triangle(size: int) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
    left, right = np.triu_indices(size, 1)
    return left, right


def _paired(left: Hashes, right: Hashes) -> Hashes:
    return _mixed(left[:, None] * _ODD + right[None, :]).ravel()


def _mixed(hashes: Hashes) -> Hashes:
    """A bijection in which every bit depends on every bit (splitmix64)."""
    mixed = hashes.copy()
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        mixed ^= mixed >> shift
        mixed *= multiplier
    mixed ^= mixed >> _SHIFTS[-1]
    return mixed
