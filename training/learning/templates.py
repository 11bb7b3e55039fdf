"""Templates of the sentences that agents read: which of their words vary.

A word varies in its place if recordings have at least three others there, with the same sentence
around them. Several passes find places that vary together: of "the column price is of type date"
the first finds that "the column * is of type date" has many columns, and the second what else is
said of a column. (Log parsers do the same with more to choose; He et al., 2017.)
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from qguide.qnet.features.facts import MOST_WORDS, SAID, Clause, facts_of
from qguide.qnet.features.hashing import FACT, PATTERNS, REPEATED, TASK_FACT, Hasher, entry
from qguide.qnet.features.words import clauses_of, generalised, patterns_in, without_numbers

_FEWEST_WORDS: Final = 3
"""In one place, two of which come again."""
_FEWEST_READ: Final = 6
"""Episodes that have a sentence of a pattern, each counted for each word there."""
_FEWEST: Final = 3
_SHARE: Final = 0.03
"""Episodes, and their share, that have a fact which is read."""
_REPEATED: Final = 0.05
"""Share of the episodes that have several sentences of a template."""
_MOST: Final = 0.95
"""Share of the episodes that have one: what all tasks say says nothing."""


def patterns_of(texts: Sequence[Iterable[str]]) -> Iterator[str]:
    """Entries of the vocabulary: patterns of sentences in which a word varies, of each pass."""
    having: defaultdict[Clause, set[int]] = defaultdict(set)
    for number, told in enumerate(texts):
        for clause in _clauses(told):
            having[without_numbers(clause)].add(number)
    template_of = {clause: clause for clause in having}
    varying: set[str] = set()
    for kind in PATTERNS:
        words: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for clause, template in template_of.items():
            for place, pattern in patterns_in(template):
                words[pattern][clause[place]] += len(having[clause])
        before, varying = varying, {pattern for pattern, counts in words.items() if _vary(counts)}
        # A new word varies in a pass less of its places, and then has to come to the same template.
        varying |= {" ".join(template) for template in template_of.values()}.difference(map(" ".join, having))
        if varying <= before:
            return
        yield from (entry(pattern, kind) for pattern in varying)
        template_of = {c: generalised(t, varying.__contains__) for c, t in template_of.items()}


def repeated(texts: Sequence[Iterable[str]], hasher: Hasher) -> Iterator[str]:
    """Entries of the vocabulary: templates of which episodes have several different sentences.

    Args:
        texts: that are read in each episode.
        hasher: that knows patterns.
    """
    counts: Counter[Clause] = Counter()
    for told in texts:
        own = Counter(hasher.template(clause) for clause in set(_clauses(told)))
        counts.update(template for template, n in own.items() if n > 1)
    return (entry(" ".join(template), REPEATED) for template, n in counts.items() if n >= _REPEATED * len(texts))


def _vary(counts: Counter[str]) -> bool:
    again = sum(count > 1 for count in counts.values())
    return len(counts) >= _FEWEST_WORDS and again > 1 and counts.total() >= _FEWEST_READ


def known_facts(openings: Sequence[Iterable[str]], observed: Sequence[Iterable[str]], hasher: Hasher) -> Iterator[str]:
    """Entries of the vocabulary: facts of tasks, and of observations, that come again.

    Args:
        openings: texts that state the task of each episode.
        observed: those of its observations.
        hasher: that knows patterns and sizes of numbers.
    """
    fewest = max(_FEWEST, _SHARE * len(observed))
    for kind, texts, most in ((TASK_FACT, openings, _MOST), (FACT, observed, 1.0)):
        counts = Counter(fact for told in texts for fact in {f for c in _clauses(told) for f in _facts(c, hasher)})
        words = Counter(place for place, _ in counts)
        for (place, word), n in counts.items():
            # A place that always says the same says no more than that its sentence was read.
            if fewest <= n <= most * len(texts) and (words[place] > 1 or word == SAID):
                yield entry(f"{place}={word}", kind)


def _facts(clause: Clause, hasher: Hasher) -> Iterator[tuple[str, str]]:
    return facts_of(clause, hasher.template(clause), hasher)


def _clauses(texts: Iterable[str]) -> Iterator[Clause]:
    return (clause for text in texts for clause in clauses_of(text) if len(clause) <= MOST_WORDS)
