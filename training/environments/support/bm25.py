"""BM25 ranking of texts (bm25s, in the form that Lucene has)."""

import re
from collections.abc import Sequence
from typing import Final

import bm25s

_WORD: Final = re.compile(r"\w+")


class Bm25Ranking:
    """Texts ranked by a query; words are compared as they are, in lower case."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._count = len(texts)
        self._index = bm25s.BM25(method="lucene")
        self._index.index([_words(text) for text in texts], show_progress=False)

    def rank(self, query: str) -> list[int]:
        """Places of the texts that have a word of `query`, the best first, ties in their order."""
        words = _words(query)
        if not words:  # bm25s takes no query without any
            return []
        scores = self._index.get_scores(words)
        order = sorted(range(self._count), key=lambda place: (-scores[place], place))
        return [place for place in order if scores[place] > 0]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
