"""Candidates as arrays, and groups of them as rows of indices."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qguide.qnet.features.hashing import Hasher
from qguide.training.choosing.features import NAMES, Candidate, hashed_words, numbers_of

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
WORD_BITS: Final = 14
_MOST_WORDS: Final = 160
_FEWEST_TASKS: Final = 4


@dataclass(frozen=True, slots=True)
class Table:
    """Candidates of all states, those of one state side by side.

    Attributes:
        numbers: (n, k) features, most of them small.
        words: (n, w) hashed words, 0 for none.
        rewards: (n,) of the attempts.
        states, tasks, sections, models, families: (n,) numbers of names.
        actions, results: (n,) equal where an action, or an answer, is the same.
        valid: (n,) by rules.
        alike: by state, (c, c) resemblance of its candidates.
        first: by state, its first candidate's row.
    """

    numbers: Floats
    words: Ints
    rewards: Floats
    states: Ints
    tasks: Ints
    sections: Ints
    models: Ints
    families: Ints
    actions: Ints
    results: Ints
    valid: NDArray[np.bool_]
    alike: list[Floats]
    first: Ints
    task_names: tuple[str, ...]
    section_names: tuple[str, ...]
    model_names: tuple[str, ...]
    read: float
    """Share of the candidates whose calls could be read, where functions may be called; else 1."""


def table_of(states: Mapping[str, Sequence[Candidate]], families: Mapping[str, str]) -> Table:
    """Arrays of these candidates.

    Args:
        families: of each model.
    """
    flat = [candidate for found in states.values() for candidate in found]
    sizes = [len(found) for found in states.values()]
    attempts = [candidate.attempt for candidate in flat]
    sections, section_names = _numbered(attempt.section for attempt in attempts)
    models, model_names = _numbered(attempt.model for attempt in attempts)
    tasks, task_names = _numbered(attempt.task for attempt in attempts)
    numbers, words = _features(flat)
    calling = [candidate for candidate in flat if candidate.functions]
    return Table(
        numbers=numbers,
        words=_frequent(words, tasks),
        rewards=np.array([attempt.reward for attempt in attempts], np.float32),
        states=np.repeat(np.arange(len(sizes)), sizes),
        tasks=tasks,
        sections=sections,
        models=models,
        families=_numbered(families[attempt.model] for attempt in attempts)[0],
        actions=_numbered((c.attempt.task, c.action_key) for c in flat)[0],
        results=_numbered((c.attempt.task, c.result_key) for c in flat)[0],
        valid=np.array([candidate.valid for candidate in flat]),
        alike=[_resemblance(found) for found in states.values()],
        first=np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64),
        task_names=task_names,
        section_names=section_names,
        model_names=model_names,
        read=float(np.mean([bool(c.calls) for c in calling])) if calling else 1.0,
    )


def _numbered(names: Iterable[Hashable]) -> tuple[Ints, tuple[str, ...]]:
    """Number of each name, and the names in the order of their numbers."""
    number: dict[Hashable, int] = {}
    found = [number.setdefault(name, len(number)) for name in names]
    return np.array(found, np.int64), tuple(map(str, number))


def _features(flat: Sequence[Candidate]) -> tuple[Floats, Ints]:
    """Numbers and words; equal candidates are read once."""
    hasher = Hasher(bits=WORD_BITS)
    numbers = np.zeros((len(flat), len(NAMES)), np.float32)
    words = np.zeros((len(flat), _MOST_WORDS), np.int64)
    known: dict[Hashable, int] = {}
    for i, candidate in enumerate(flat):
        read = tuple((turn.action.text, turn.observation) for turn in candidate.turns)
        same = known.setdefault((candidate.attempt.task, read), i)
        if same < i:
            numbers[i], words[i] = numbers[same], words[same]
            continue
        numbers[i] = numbers_of(candidate)
        hashes = hasher.hashes(dict.fromkeys(hashed_words(candidate)))[:_MOST_WORDS]
        words[i, : len(hashes)] = 1 + (hashes >> np.uint64(64 - WORD_BITS)).astype(np.int64)
    return numbers, words


def _frequent(words: Ints, tasks: Ints) -> Ints:
    """The words that occur in several tasks; others tell one task from another."""
    seen: dict[int, set[int]] = defaultdict(set)
    for row, task in zip(words, tasks, strict=True):
        for word in row[row > 0]:
            if len(own := seen[int(word)]) < _FEWEST_TASKS:
                own.add(int(task))
    often = np.zeros((1 << WORD_BITS) + 1, np.bool_)
    often[[word for word, own in seen.items() if len(own) >= _FEWEST_TASKS]] = True
    return np.where(often[words], words, 0)


def _resemblance(found: Sequence[Candidate]) -> Floats:
    """(c, c) share of common parts, Jaccard's index."""
    parts = [candidate.parts for candidate in found]
    number: dict[str, int] = {}
    has = np.zeros((len(parts), len({part for one in parts for part in one})), np.float32)
    for row, one in zip(has, parts, strict=True):
        row[[number.setdefault(part, len(number)) for part in one]] = 1
    common = has @ has.T
    sizes = has.sum(axis=1)
    alike: Floats = common / np.maximum(sizes[:, None] + sizes[None, :] - common, 1)
    return alike


def draw_groups(
    table: Table, among: NDArray[np.bool_], *, size: int, draws: int, rng: np.random.Generator
) -> Ints:
    """(g, size) rows of candidates of one state: for each state `draws` groups, drawn at random.

    Args:
        among: (n,) true for candidates that may be drawn; a state with fewer than `size` has none.
    """
    rows = np.flatnonzero(among)
    starts = np.flatnonzero(np.diff(table.states[rows], prepend=-1))
    groups = [
        rng.permutation(own)[:size]
        for own in np.split(rows, starts[1:])
        if len(own) >= size
        for _ in range(draws)
    ]
    return np.array(groups, np.int64).reshape(-1, size)


def group_numbers(table: Table, groups: Ints) -> Floats:
    """(g, size, f) features of each candidate among the others of its group.

    Its share of equal actions and of equal answers, its mean and highest resemblance to others, the
    share of valid ones, and its numbers less their mean over the group.
    """
    size = groups.shape[1]
    place = groups - table.first[table.states[groups]]
    alike = np.stack(
        [
            table.alike[int(table.states[own[0]])][np.ix_(at, at)]
            for own, at in zip(groups, place, strict=True)
        ]
    )
    others = alike - np.eye(size, dtype=np.float32)
    same = [equal(keys[groups]).mean(axis=2) for keys in (table.actions, table.results)]
    valid = table.valid[groups].astype(np.float32)
    found = [
        *same,
        *(share >= share.max(axis=1, keepdims=True) for share in same),
        others.sum(axis=2) / (size - 1),
        others.max(axis=2),
        valid,
        np.broadcast_to(valid.mean(axis=1, keepdims=True), valid.shape),
    ]
    own = np.stack([part.astype(np.float32) for part in found], axis=2)
    numbers = table.numbers[groups]
    return np.concatenate([own, numbers - numbers.mean(axis=1, keepdims=True)], axis=2)


def equal(keys: Ints) -> Floats:
    """(g, size, size) 1 where two candidates of a group are equal."""
    same: NDArray[np.bool_] = keys[:, :, None] == keys[:, None, :]
    return same.astype(np.float32)
