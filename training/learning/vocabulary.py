"""Vocabulary of a Q model without a network: the words of states that tell them apart.

A word that nearly all episodes have says nothing, and one that a single episode has teaches nothing
about others; crossed with each other they are most of the features. An action's own words are
always read.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from qguide.qnet.features.hashing import Hasher, Hashes
from qguide.qnet.features.words import words_of
from qguide.training.learning.episodes import Episode

FEWEST: Final = 2
"""Episodes that have a word of the vocabulary."""

MOST: Final = 0.95
"""Share of the episodes that have one."""


def vocabulary_of(episodes: Sequence[Episode], hasher: Hasher) -> Hashes:
    """Hashes of the words, in order."""
    counts = Counter(word for episode in episodes for word in _words(episode))
    most = MOST * len(episodes)
    return np.sort(hasher.hashes(w for w, n in counts.items() if FEWEST <= n <= most))


def _words(episode: Episode) -> frozenset[str]:
    """Words of a task and of all its observations."""
    said = [one.text for one in episode.states[-1] if one.role not in ("assistant", "system")]
    return frozenset(word for text in said for word in words_of(text))
