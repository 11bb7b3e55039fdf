"""HotPotQA's two measures of an answer, exact match and F1, as its official evaluation has them."""

import re
import string
from collections import Counter
from typing import Final

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_WHOLE_ANSWERS: Final = frozenset({"yes", "no", "noanswer"})


def normalized(answer: str) -> str:
    """An answer in lower case, without ASCII punctuation, articles and extra spaces."""
    bare = answer.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(answer: str, gold: str) -> float:
    """1 if both answers are equal once they are normalized, otherwise 0."""
    return float(normalized(answer) == normalized(gold))


def f1(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall of the answer's words, in [0, 1].

    "yes", "no" and "noanswer" are right or wrong as a whole.
    """
    answered, wanted = normalized(answer), normalized(gold)
    if answered != wanted and not _WHOLE_ANSWERS.isdisjoint((answered, wanted)):
        return 0.0
    words, gold_words = answered.split(), wanted.split()
    common = (Counter(words) & Counter(gold_words)).total()
    return 2 * common / (len(words) + len(gold_words)) if common else 0.0
