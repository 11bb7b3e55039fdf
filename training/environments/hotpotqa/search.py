"""Search in a question's own paragraphs, and lookup in the one that was found."""

import re
from collections.abc import Sequence
from typing import Final

import bm25s

from training.environments.hotpotqa.questions import Paragraph

_WORD: Final = re.compile(r"\w+")
_FIRST_SENTENCES: Final = 5
_SIMILAR: Final = 4


class ParagraphIndex:
    """Paragraphs ranked by BM25 of title and text; a paragraph's title is always its best query."""

    def __init__(self, paragraphs: Sequence[Paragraph]) -> None:
        """Index the paragraphs."""
        self._paragraphs = paragraphs
        self._by_title = {paragraph.title.lower(): paragraph for paragraph in paragraphs}
        self._ranking = bm25s.BM25(method="lucene")
        texts = [
            _words(" ".join((paragraph.title, *paragraph.sentences))) for paragraph in paragraphs
        ]
        self._ranking.index(texts, show_progress=False)

    def rank(self, query: str) -> list[Paragraph]:
        """The paragraphs that have a word of `query`, the best first."""
        words = _words(query)  # bm25s takes no query without any
        scores = self._ranking.get_scores(words) if words else [0.0] * len(self._paragraphs)
        order = sorted(range(len(self._paragraphs)), key=lambda place: (-scores[place], place))
        ranked = [self._paragraphs[place] for place in order if scores[place] > 0]
        titled = self._by_title.get(query.strip().lower())
        if titled is None:
            return ranked
        return [titled, *(paragraph for paragraph in ranked if paragraph is not titled)]


def describe_found(ranked: Sequence[Paragraph], query: str) -> str:
    """A search's answer: the best paragraph's beginning, and the titles of the next ones."""
    if not ranked:
        return f"Nothing is found for {query.strip()!r}."
    best, *others = ranked
    beginning = " ".join(sentence.strip() for sentence in best.sentences[:_FIRST_SENTENCES])
    found = f"{best.title}: {beginning}"
    titles = "; ".join(paragraph.title for paragraph in others[:_SIMILAR])
    return f"{found}\nSimilar: {titles}." if titles else found


def sentences_with(paragraph: Paragraph, words: str) -> list[str]:
    """The paragraph's sentences that contain `words`, in any case."""
    wanted = words.strip().lower()
    return [sentence.strip() for sentence in paragraph.sentences if wanted in sentence.lower()]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
