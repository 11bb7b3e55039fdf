"""Vocabulary of a Q model without a network: the words of states that tell them apart.

A word that nearly all episodes have says nothing, and one that a single episode has teaches nothing
about others; crossed with each other they are most of the features. Tasks and observations are
counted apart, because instructions may list what observations tell. An action's own words are
always read. Messages with which every episode begins, such as examples, are kept whole: to be
skipped.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

import numpy as np

from qguide.qnet.features.hashing import FRAME, TASK, Hasher, Hashes, entry
from qguide.qnet.features.words import words_of
from qguide.qnet.types import INSTRUCTING, Message
from qguide.training.learning.episodes import Episode

FEWEST: Final = 2
"""Episodes that have a word of the vocabulary."""

MOST: Final = 0.95
"""Share of the episodes that have one."""


def vocabulary_of(episodes: Sequence[Episode], hasher: Hasher) -> Hashes:
    """Hashes of the words and of the frame, in order."""
    frame = _frame_of(episodes)
    split = [_opening_and_observed(episode.states[-1][len(frame) :]) for episode in episodes]
    known = [
        *(entry(word, TASK) for word in _telling([opening for opening, _ in split])),
        *(entry(word) for word in _telling([observed for _, observed in split])),
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


def _opening_and_observed(messages: Sequence[Message]) -> tuple[frozenset[str], frozenset[str]]:
    """Words up to the task's, and of all observations."""
    start = next((i for i, one in enumerate(messages) if one.role == "user"), 0)
    opening = [one.text for one in messages[: start + 1] if one.role in (*INSTRUCTING, "user")]
    after = messages[start + 1 :]
    return _words(opening), _words(
        [one.text for one in after if one.role not in ("assistant", "system")]
    )


def _words(texts: Sequence[str]) -> frozenset[str]:
    return frozenset(word for text in texts for word in words_of(text))


def _telling(texts: Sequence[frozenset[str]]) -> Iterator[str]:
    """The words that some episodes have, and not nearly all."""
    counts = Counter(word for words in texts for word in words)
    most = MOST * len(texts)
    return (word for word, n in counts.items() if FEWEST <= n <= most)
