"""Search in a question's own paragraphs, and lookup in the one that was found."""

from collections.abc import Sequence
from typing import Final

from training.environments.hotpotqa.questions import Paragraph
from training.environments.ranking.bm25 import Bm25Ranking

_FIRST_SENTENCES: Final = 5
_SIMILAR: Final = 4


class ParagraphIndex:
    """Paragraphs ranked by BM25 of title and text; a paragraph's title is always its best query."""

    def __init__(self, paragraphs: Sequence[Paragraph]) -> None:
        """Index the paragraphs."""
        self._paragraphs = paragraphs
        self._by_title = {paragraph.title.lower(): paragraph for paragraph in paragraphs}
        self._ranking = Bm25Ranking(
            [" ".join((paragraph.title, *paragraph.sentences)) for paragraph in paragraphs]
        )

    def rank(self, query: str) -> list[Paragraph]:
        """The paragraphs that have a word of `query`, the best first."""
        ranked = [self._paragraphs[place] for place in self._ranking.rank(query)]
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
