"""Candidates as arrays, and groups of them as rows of indices."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from itertools import takewhile
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import svd
from scipy.sparse.linalg import aslinearoperator, eigsh

from qguide.qnet.features.hashing import Hasher, Hashes
from qguide.training.choosing.attempts import AttemptTurn
from qguide.training.choosing.features import NAMES, ReadAttempt, forms_of, hashed_words, numbers_of

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
_BITS: Final = 16
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: near numbers, multiplied by it, are far apart in their first bits."""
_FEWEST_TASKS: Final = 4
_TOPICS: Final = 12


@dataclass(frozen=True, slots=True)
class Table:
    """Candidates of all states, those of one state side by side.

    Attributes:
        numbers: (n, k) features, most of them small; the last ones are topics of the words.
        rewards: (n,) of the attempts.
        states, tasks, sections, models, families: (n,) numbers of names.
        actions, results: (n,) equal where an action, or an answer, is the same.
        valid: (n,) by rules.
        logprobs: (n,) of the actions that are read, each summed over its tokens; NaN where not known.
        written, to_come: (n,) length of the actions that are read, and of those behind them.
        alike, holding: resemblance of each state's candidates to each other, and the share of each
            one's parts that the other has, flat.
        words, forms: (n, w) sparse, rows of length 1: the words of each, and the runs of bytes in
            which it is written; rare ones weigh more.
        first, first_alike: by state, the place of its first candidate, and of its resemblances.
    """

    numbers: Floats
    rewards: Floats
    states: Ints
    tasks: Ints
    sections: Ints
    models: Ints
    families: Ints
    actions: Ints
    results: Ints
    valid: NDArray[np.bool_]
    logprobs: Floats
    written: Floats
    to_come: Floats
    alike: Floats
    holding: Floats
    words: Any
    forms: Any
    first: Ints
    first_alike: Ints
    task_names: tuple[str, ...]
    section_names: tuple[str, ...]
    model_names: tuple[str, ...]
    read: float
    """Share of the candidates whose calls could be read, where functions may be called; else 1."""
    unit: str
    """Of lengths: "characters" or "tokens"."""

    def without_words(self) -> "Table":
        """The same candidates, of which a Q model reads the numbers of `NAMES` alone."""
        nothing = self.words[:, :0]
        return replace(self, numbers=self.numbers[:, : len(NAMES)], words=nothing, forms=nothing)


def table_of(
    states: Mapping[str, Sequence[ReadAttempt]], families: Mapping[str, str], tokens: Callable[[str], int] | None = None
) -> Table:
    """Arrays of these candidates.

    Args:
        tokens: number of a text's tokens; None counts characters.
    """
    flat = [candidate for found in states.values() for candidate in found]
    sizes = [len(found) for found in states.values()]
    attempts = [candidate.attempt for candidate in flat]
    sections, section_names = _numbered(attempt.section for attempt in attempts)
    models, model_names = _numbered(attempt.model for attempt in attempts)
    tasks, task_names = _numbered(attempt.task for attempt in attempts)
    calling = [candidate for candidate in flat if candidate.functions]
    numbers, words, forms = _features(flat, tasks)
    length = tokens or len
    common = [_resemblance(found) for found in states.values()]
    return Table(
        numbers=numbers,
        rewards=np.array([attempt.reward for attempt in attempts], np.float32),
        states=np.repeat(np.arange(len(sizes)), sizes),
        tasks=tasks,
        sections=sections,
        models=models,
        families=_numbered(families[attempt.model] for attempt in attempts)[0],
        actions=_numbered((c.attempt.task, c.action_key) for c in flat)[0],
        results=_numbered((c.attempt.task, c.result_key) for c in flat)[0],
        valid=np.array([candidate.valid for candidate in flat]),
        logprobs=np.array([sum(turn.logprob for turn in c.turns) for c in flat], np.float32),
        written=np.array([_written(c.turns, length) for c in flat], np.float32),
        to_come=np.array([_written(_rest(c), length) for c in flat], np.float32),
        alike=np.concatenate([alike.ravel() for alike, _ in common]),
        holding=np.concatenate([holding.ravel() for _, holding in common]),
        words=words,
        forms=forms,
        first=np.cumsum([0, *sizes])[:-1],
        first_alike=np.cumsum([0, *(size**2 for size in sizes)])[:-1],
        task_names=task_names,
        section_names=section_names,
        model_names=model_names,
        read=float(np.mean([bool(c.calls) for c in calling])) if calling else 1.0,
        unit="tokens" if tokens else "characters",
    )


def _written(turns: Iterable[AttemptTurn], length: Callable[[str], int]) -> int:
    return sum(length(turn.action.text) for turn in turns)


def _rest(candidate: ReadAttempt) -> Iterator[AttemptTurn]:
    """The turns behind those that are read, last first."""
    return takewhile(lambda turn: turn is not candidate.turns[-1], reversed(candidate.attempt.turns))


def _numbered(names: Iterable[Hashable]) -> tuple[Ints, tuple[str, ...]]:
    """Number of each name, and the names in the order of their numbers."""
    number: dict[Hashable, int] = {}
    found = [number.setdefault(name, len(number)) for name in names]
    return np.array(found, np.int64), tuple(map(str, number))


def _features(flat: Sequence[ReadAttempt], tasks: Ints) -> tuple[Floats, Any, Any]:
    """Numbers with topics, words and forms; equal candidates are read once."""
    hasher = Hasher(bits=_BITS)
    seen: dict[Hashable, int] = {}
    place = np.zeros(len(flat), np.int64)
    numbers: list[list[float]] = []
    words: list[Ints] = []
    forms: list[Ints] = []
    for i, candidate in enumerate(flat):
        read = tuple((turn.action.text, turn.observation) for turn in candidate.turns)
        place[i] = seen.setdefault((candidate.attempt.task, read), len(seen))
        if place[i] == len(numbers):
            numbers.append(numbers_of(candidate))
            words.append(_columns(hasher.hashes(dict.fromkeys(hashed_words(candidate)))))
            forms.append(np.unique(_columns(forms_of(candidate) * _SPREAD)))
    first = np.unique(place, return_index=True)[1]
    known, written = (_weighed(own, tasks[first]) for own in (words, forms))
    topics = _topics(known)
    alike = (_of_length_one(own.sqrt())[place] for own in (known, written))
    return np.concatenate([np.array(numbers, np.float32), topics], axis=1)[place], *alike


def _columns(hashes: Hashes) -> Ints:
    return (hashes >> np.uint64(64 - _BITS)).astype(np.int64)


def _weighed(columns: Sequence[Ints], tasks: Ints) -> Any:
    """(n, w) of texts by their columns, rare ones weighing more.

    Those of fewer tasks than `_FEWEST_TASKS` are left out: they tell one task from another.
    """
    starts = np.concatenate([[0], np.cumsum([len(own) for own in columns])])
    flat = np.concatenate(columns)
    # Task and column in one number, each pair once: a column counts the tasks that have it, not the texts.
    by_task = np.unique(np.repeat(tasks, np.diff(starts)) << _BITS | flat)
    frequency = np.bincount(by_task % (1 << _BITS), minlength=1 << _BITS)
    weight = np.log(1 + tasks.max() / np.maximum(frequency, 1)) * (frequency >= _FEWEST_TASKS)
    x: Any = sparse.csr_matrix((weight[flat], flat, starts), shape=(len(columns), 1 << _BITS))
    return x[:, np.flatnonzero(weight)]


def _topics(weighed: Any) -> Floats:
    """(n, _TOPICS) coordinates of texts by latent semantic analysis; no outcome is read here."""
    x = _of_length_one(weighed)
    found = np.zeros((x.shape[0], _TOPICS), np.float32)
    if (count := min(_TOPICS, *x.shape) - 1) > 0:
        found[:, :count] = _principal(x, count)
    return found


_SEEDED: Final[Any] = {"rng": 0} if "rng" in signature(eigsh).parameters else {}
"""ARPACK begins anew at random where few texts differ; scipy below 1.17 had a seed of its own for that."""


def _principal(x: Any, count: int) -> Floats:
    """(n, count) left singular vectors times their values, as scipy's `svds` finds them, which hands ARPACK no seed."""
    wide = x.shape[0] < x.shape[1]
    read: Any = aslinearoperator(x.T if wide else x)
    gram = read.T @ read
    _, right = eigsh(gram, k=count, v0=np.ones(gram.shape[0], x.dtype), **_SEEDED)
    right = np.linalg.qr(right)[0]
    left, scale, turned = svd(read.matmat(right), full_matrices=False)
    found: Floats = (right @ turned.T if wide else left) * scale
    return found[:, ::-1]


def _of_length_one(x: Any) -> Any:
    lengths = np.sqrt(np.asarray(x.multiply(x).sum(axis=1)).ravel())
    return (sparse.diags(1 / np.maximum(lengths, 1e-6)) @ x).tocsr().astype(np.float32)


def _resemblance(found: Sequence[ReadAttempt]) -> tuple[Floats, Floats]:
    """(c, c) share of common parts, Jaccard's index, and share of the first one's parts."""
    parts = [candidate.parts for candidate in found]
    number: dict[str, int] = {}
    has = np.zeros((len(parts), len({part for one in parts for part in one})), np.float32)
    for row, one in zip(has, parts, strict=True):
        row[[number.setdefault(part, len(number)) for part in one]] = 1
    common = has @ has.T
    sizes = has.sum(axis=1)
    alike: Floats = common / np.maximum(sizes[:, None] + sizes[None, :] - common, 1)
    holding: Floats = common / np.maximum(sizes[:, None], 1)
    return alike, holding


def draw_groups(table: Table, among: NDArray[np.bool_], *, size: int, draws: int, rng: np.random.Generator) -> Ints:
    """(g, size) rows of candidates of one state: for each state `draws` groups, drawn at random.

    Args:
        among: (n,) true for candidates that may be drawn; a state with fewer than `size` has none.
    """
    rows = np.flatnonzero(among)
    starts = np.flatnonzero(np.diff(table.states[rows], prepend=-1))
    groups = [
        rng.permutation(own)[:size] for own in np.split(rows, starts[1:]) if len(own) >= size for _ in range(draws)
    ]
    return np.array(groups, np.int64).reshape(-1, size)


def group_numbers(table: Table, groups: Ints, numbers: Floats) -> Floats:
    """(g, size, f) features of each candidate among the others of its group.

    Its share of equal actions and of equal answers, its mean and highest resemblance to others, the
    mean share of its parts that others have and of others' parts that it has, the share of valid
    ones, and its numbers less their mean over the group.

    Args:
        numbers: (g, size, k) of the candidates.
    """
    size = groups.shape[1]
    states = table.states[groups[:, :1]]
    place = groups - table.first[states]
    count = np.diff(table.first, append=len(table.states))[states]
    begin = (table.first_alike[states] + place * count)[:, :, None]
    others, holding = (
        flat[begin + place[:, None, :]] * (1 - np.eye(size, dtype=np.float32)) for flat in (table.alike, table.holding)
    )
    same = [equal(keys[groups]).mean(axis=2) for keys in (table.actions, table.results)]
    valid = table.valid[groups].astype(np.float32)
    found = [
        *same,
        *(share >= share.max(axis=1, keepdims=True) for share in same),
        others.sum(axis=2) / (size - 1),
        others.max(axis=2),
        holding.sum(axis=2) / (size - 1),
        holding.sum(axis=1) / (size - 1),
        valid,
        np.broadcast_to(valid.mean(axis=1, keepdims=True), valid.shape),
    ]
    own = np.stack([part.astype(np.float32) for part in found], axis=2)
    return np.concatenate([own, numbers - numbers.mean(axis=1, keepdims=True)], axis=2)


def equal(keys: Ints) -> Floats:
    """(g, size, size) 1 where two candidates of a group are equal."""
    same: NDArray[np.bool_] = keys[:, :, None] == keys[:, None, :]
    return same.astype(np.float32)
