"""Vocabulary of a Q model without a network: the words of states that tell them apart.

A word that nearly all episodes have says nothing, and one that a single episode has teaches nothing
about others; crossed with each other they are most of the features. Tasks and observations are
counted apart, because instructions may list what observations tell. An action's own words are
always read. Messages with which every episode begins, such as examples, are kept whole: to be
skipped.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

import numpy as np

from qguide.qnet.features.hashing import (
    FRAME,
    QUANTILES,
    TASK,
    Hasher,
    Hashes,
    Sizes,
    entry,
    number_place,
)
from qguide.qnet.features.words import is_number, numbers_of, words_of
from qguide.qnet.types import INSTRUCTING, Message
from qguide.training.learning.episodes import Episode

FEWEST: Final = 2
"""Episodes that have a word of the vocabulary."""

FEWEST_WITH_NUMBER: Final = 0.05
"""Share of the episodes that have a number which is read as a word."""

FEWEST_NUMBERS: Final = 8
"""Numbers by which one is large or small."""

_QUANTILES: Final = (0.25, 0.5, 0.75, 0.875)
"""More of the large ones, because what is out of order tends to be large."""

MOST: Final = 0.95
"""Share of the episodes that have one."""


def hasher_reading(episodes: Sequence[Episode], hasher: Hasher) -> Hasher:
    """The hasher with the vocabulary and the sizes of numbers of these episodes."""
    reading = hasher.reading(vocabulary_of(episodes, hasher))
    assert reading.vocabulary is not None
    return reading.reading(reading.vocabulary, sizes_of(episodes, reading))


def sizes_of(episodes: Sequence[Episode], hasher: Hasher) -> Sizes:
    """Quantiles of the numbers that are observed after each word, whose places number at least 8.

    They are taken over all tasks, and over those with each word of the vocabulary.
    """
    frame = len(_frame_of(episodes))
    found: defaultdict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        opening, observed = _opening_and_observed(episode.states[-1][frame:])
        task = hasher.known({word for text in opening for word in words_of(text)}, TASK)
        for label, number in {pair for text in observed for pair in numbers_of(text)}:
            for word in ("", *task):
                found[number_place(label, word)].append(number)
    told = {place: own for place, own in found.items() if len(own) >= FEWEST_NUMBERS}
    quantiles = [np.quantile(own, _QUANTILES) for own in told.values()]
    return Sizes(hasher.hashes(told), np.array(quantiles, np.float32).reshape(len(told), QUANTILES))


def vocabulary_of(episodes: Sequence[Episode], hasher: Hasher) -> Hashes:
    """Hashes of the words and of the frame, in order."""
    frame = _frame_of(episodes)
    split = [_opening_and_observed(episode.states[-1][len(frame) :]) for episode in episodes]
    known = [
        *(entry(word, TASK) for word in _telling([_words(opening) for opening, _ in split])),
        *(entry(word) for word in _telling([_words(observed) for _, observed in split])),
        *(entry(message.text, FRAME) for message in frame if message.role != "assistant"),
    ]
    return np.unique(hasher.hashes(known))


def _frame_of(episodes: Sequence[Episode]) -> Sequence[Message]:
    """The messages with which every episode begins, where there are several tasks."""
    if len({episode.task for episode in episodes}) < FEWEST:
        return ()
    told = [episode.states[-1] for episode in episodes]
    same = takewhile(lambda each: all(one == each[0] for one in each), zip(*told, strict=False))
    return [each[0] for each in same]


def _opening_and_observed(messages: Sequence[Message]) -> tuple[list[str], list[str]]:
    """Texts up to the task's, and of all observations."""
    start = next((i for i, one in enumerate(messages) if one.role == "user"), 0)
    opening = [one.text for one in messages[: start + 1] if one.role in (*INSTRUCTING, "user")]
    after = messages[start + 1 :]
    return opening, [one.text for one in after if one.role not in ("assistant", "system")]


def _words(texts: Sequence[str]) -> frozenset[str]:
    return frozenset(word for text in texts for word in words_of(text))


def _telling(texts: Sequence[frozenset[str]]) -> Iterator[str]:
    """The words that some episodes have, and not nearly all.

    Numbers that few have, such as prices and identifiers, say little each; their size is another
    matter.
    """
    counts = Counter(word for words in texts for word in words)
    most, of_numbers = MOST * len(texts), FEWEST_WITH_NUMBER * len(texts)
    return (
        word
        for word, n in counts.items()
        if FEWEST <= n <= most and (n >= of_numbers or not is_number(word))
    )
