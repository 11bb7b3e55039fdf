"""Vocabulary of a Q model without a network: the words of states that tell them apart.

A word that nearly all episodes have says nothing, and one that a single episode has teaches nothing
about others; crossed with each other they are most of the features. Tasks and observations are
counted apart, because instructions may list what observations tell. An action's own words are
always read. Facts of sentences are kept that come again (`qguide.training.learning.templates`).
Messages with which every episode begins, such as examples, are kept whole: to be skipped.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final

import numpy as np

from qguide.qnet.features.hashing import FRAME, QUANTILES, TASK, Hasher, Hashes, Sizes, entry, number_place
from qguide.qnet.features.state_action import TASK_WORDS
from qguide.qnet.features.words import is_number, numbers_of, words_of
from qguide.qnet.types import INSTRUCTING, Message
from qguide.training.learning.episodes import LearnedEpisode, played_of
from qguide.training.learning.ridge import Floats
from qguide.training.learning.templates import known_facts, patterns_of, repeated

FEWEST: Final = 2
"""Episodes that have a word of the vocabulary."""

FEWEST_WITH_NUMBER: Final = 0.05
"""Share of the episodes that have a number which is read as a word."""

FEWEST_NUMBERS: Final = 8
"""Numbers by which one is large or small."""

_MOST_NUMBERS: Final = 200
"""Of one episode, the newest: long pages have thousands."""

_MOST_LABELS: Final = 500
"""Words before numbers, those with the most."""

MOST_PLACES: Final = 50_000
"""Pairs of such a word and one of the task, those with the most numbers. A model holds them all."""

_QUANTILES: Final = (0.25, 0.5, 0.75, 0.875)
"""More of the large ones, because what is out of order tends to be large."""

MOST: Final = 0.95
"""Share of the episodes that have one."""


def hasher_reading(episodes: Sequence[LearnedEpisode], hasher: Hasher) -> Hasher:
    """The hasher with the vocabulary and the sizes of numbers of these episodes, each as it was played."""
    episodes = _as_played(episodes)
    words = vocabulary_of(episodes, hasher)
    sizes = sizes_of(episodes, hasher.reading(words))
    frame = len(_frame_of(episodes))
    openings, observed = zip(*(_opening_and_observed(episode.states[-1][frame:]) for episode in episodes), strict=True)
    every = [(*opening, *told) for opening, told in zip(openings, observed, strict=True)]
    words = np.union1d(words, hasher.hashes(repeated(every, hasher.reading(words))))
    facts = known_facts(openings, observed, hasher.reading(words, sizes))
    return hasher.reading(np.union1d(words, hasher.hashes(facts)), sizes)


def _as_played(episodes: Sequence[LearnedEpisode]) -> list[LearnedEpisode]:
    """Of the candidates of each played episode one with the most before it, which has read what the others have."""
    longest: dict[str, LearnedEpisode] = {}
    for name, one in zip(played_of(episodes), episodes, strict=True):
        longest[name] = max(longest.get(name, one), one, key=lambda each: len(each.states[-1]))
    return list(longest.values())


def sizes_of(episodes: Sequence[LearnedEpisode], hasher: Hasher) -> Sizes:
    """Quantiles of the numbers that are observed after each word, where these are at least 8.

    They are taken over all tasks, and over those with each word of the vocabulary that is read.
    """
    frame = len(_frame_of(episodes))
    having: defaultdict[str, list[int]] = defaultdict(list)
    told: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    for i, episode in enumerate(episodes):
        opening, observed = _opening_and_observed(episode.states[-1][frame:])
        words = dict.fromkeys(word for text in opening for word in words_of(text))
        for word in ("", *hasher.known(words, TASK)[:TASK_WORDS]):
            having[word].append(i)
        pairs = dict.fromkeys(pair for text in observed for pair in numbers_of(text))
        for label, number in list(pairs)[-_MOST_NUMBERS:]:
            told[label].append((number, i))
    labels = sorted(told, key=lambda label: -len(told[label]))[:_MOST_LABELS]
    numbers = {label: np.array(told[label]) for label in labels}
    places, quantiles = _places_of(numbers, having, len(episodes)), []
    for label, word in places:
        among = np.zeros(len(episodes), np.bool_)
        among[having[word]] = True
        own = numbers[label]
        quantiles.append(np.quantile(own[among[own[:, 1].astype(int)], 0], _QUANTILES))
    return Sizes(
        hasher.hashes(number_place(*place) for place in places),
        np.array(quantiles, np.float32).reshape(len(places), QUANTILES),
    )


def _places_of(
    numbers: Mapping[str, Floats], having: Mapping[str, Sequence[int]], episodes: int
) -> list[tuple[str, str]]:
    """The words before numbers, each with the words of tasks for which there are enough numbers.

    Args:
        numbers: (n, 2) after each word, and the index of each one's episode.
    """
    if not numbers:
        return []
    labels, words = list(numbers), list(having)
    of_word = np.repeat(np.arange(len(words)), [len(own) for own in having.values()])
    of_episode = np.concatenate([np.array(own) for own in having.values()])
    of_label = [np.bincount(own[:, 1].astype(int), minlength=episodes) for own in numbers.values()]
    counts = np.stack([np.bincount(of_word, each[of_episode]) for each in of_label])
    # Stable, so a word before numbers has its place of all tasks before those of some.
    largest = np.argsort(-counts, axis=None, kind="stable")[:MOST_PLACES]
    rows, columns = np.unravel_index(largest[counts.flat[largest] >= FEWEST_NUMBERS], counts.shape)
    return [(labels[i], words[j]) for i, j in zip(rows, columns, strict=True)]


def vocabulary_of(episodes: Sequence[LearnedEpisode], hasher: Hasher) -> Hashes:
    """Hashes of the words, of the frame, and of the patterns of sentences, in order."""
    frame = _frame_of(episodes)
    split = [_opening_and_observed(episode.states[-1][len(frame) :]) for episode in episodes]
    known = [
        *(entry(word, TASK) for word in _telling([_words(opening) for opening, _ in split])),
        *(entry(word) for word in _telling([_words(observed) for _, observed in split])),
        *(entry(message.text, FRAME) for message in frame if message.role != "assistant"),
        *patterns_of([(*opening, *observed) for opening, observed in split]),
    ]
    return np.unique(hasher.hashes(known))


def _frame_of(episodes: Sequence[LearnedEpisode]) -> Sequence[Message]:
    """The messages with which every episode begins, where there are several tasks."""
    if len({episode.task for episode in episodes}) < FEWEST:
        return ()
    told = [episode.states[-1] for episode in episodes]
    same = takewhile(lambda each: all(one == each[0] for one in each), zip(*told, strict=False))
    return [each[0] for each in same]


def _opening_and_observed(messages: Sequence[Message]) -> tuple[list[str], list[str]]:
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
    return (word for word, n in counts.items() if FEWEST <= n <= most and (n >= of_numbers or not is_number(word)))
