"""HotPotQA as the jobs know it: answer a question by search in its paragraphs.

[environment]
name = "hotpotqa"
questions = "data/hotpot_dev_distractor_v1.json"    # without it: generated questions
slice = "0:500"
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from qguide.qnet.errors import EnvironmentFailureError
from qguide.qnet.types import TaskMarker
from qguide.training.environment import EnvironmentBundle, NumberedConfig, StepResult, Task
from qguide.training.environments.hotpotqa.questions import (
    NAME_SETS,
    Paragraph,
    Question,
    generated_question,
    read_questions,
)
from qguide.training.environments.support.bm25 import Bm25Ranking
from qguide.training.trajectory import ChatFormat, react_reply

QUESTION_OPENING: Final = "Question:"
FINISHED: Final = "Your answer is handed in."
USAGE: Final = "Nothing happens. Use Search[words], Lookup[words] or Finish[answer]."
Measure = Literal["em", "f1"]

_ACTION: Final = re.compile(r"(search|lookup|finish)\[(.*)\]", re.I | re.S)
_FIRST_SENTENCES: Final = 5
_SIMILAR: Final = 4
_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_WHOLE_ANSWERS: Final = frozenset({"yes", "no", "noanswer"})


class QuestionEpisode:
    """See `qguide.training.environment.Environment`. Only an answer has a reward."""

    def __init__(self, question: Question, *, turns: int = 7, measure: Measure = "em") -> None:
        self._question, self._turns, self._measure = question, turns, measure
        self._index: ParagraphIndex | None = None
        self._page: Paragraph | None = None
        self._looked_up = ("", 0)
        self._taken = 0

    def reset(self) -> str:
        """The question."""
        self._index = ParagraphIndex(self._question.paragraphs)
        self._page, self._looked_up, self._taken = None, ("", 0), 0
        return f"{QUESTION_OPENING} {self._question.text}"

    def step(self, action: str) -> StepResult:
        """Take "Search[words]", "Lookup[words]" or "Finish[answer]"."""
        if self._index is None:
            raise EnvironmentFailureError(f"step({action!r}): no episode is running; reset first")
        self._taken += 1
        over = self._taken >= self._turns
        parsed = _ACTION.fullmatch(action.strip())
        kind, words = (parsed[1].lower(), parsed[2]) if parsed else ("", "")
        if kind == "finish":
            self.close()
            return StepResult(FINISHED, self._reward(words), terminated=True)
        observation = self._search(words) if kind == "search" else self._lookup(kind, words)
        if over:
            self.close()
        valid = observation is not None
        return StepResult(observation or USAGE, 0.0, terminated=False, valid=valid, truncated=over)

    def close(self) -> None:
        """Drop the index; safe to call twice."""
        self._index = None

    def _search(self, words: str) -> str | None:
        if self._index is None or not words.strip():
            return None
        ranked = self._index.rank(words)
        if ranked:
            self._page, self._looked_up = ranked[0], ("", 0)
        return describe_found(ranked, words)

    def _lookup(self, kind: str, words: str) -> str | None:
        """The next sentence with `words`; None without a page or words to look up."""
        if kind != "lookup" or self._page is None or not words.strip():
            return None
        found = sentences_with(self._page, words)
        last, count = self._looked_up
        place = count if last == words.strip().lower() else 0
        self._looked_up = (words.strip().lower(), place + 1)
        if place >= len(found):
            return f"{self._page.title} has no more sentence with {words.strip()!r}."
        return f"({place + 1} of {len(found)}) {found[place]}"

    def _reward(self, answer: str) -> float:
        measure = exact_match if self._measure == "em" else f1
        return measure(answer, self._question.answer)


class ParagraphIndex:
    """Paragraphs ranked by BM25 of title and text; a paragraph's title is always its best query."""

    def __init__(self, paragraphs: Sequence[Paragraph]) -> None:
        self._paragraphs = paragraphs
        self._by_title = {paragraph.title.lower(): paragraph for paragraph in paragraphs}
        self._ranking = Bm25Ranking([" ".join((paragraph.title, *paragraph.sentences)) for paragraph in paragraphs])

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


def normalized(answer: str) -> str:
    """An answer in lower case, without ASCII punctuation, articles and extra spaces.

    It and the two measures are those of HotPotQA's official evaluation.
    """
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


SYSTEM: Final = (
    "Answer the question from the pages of a small encyclopedia. Each reply is a thought and an "
    'action, "Thought: …" and "Action: …" on two lines. Search[words] shows the page that fits '
    "best, Lookup[words] the next sentence of that page that has these words, and Finish[answer] "
    "hands in your answer, which should be a name, a number, yes or no, or a few words."
)


class QuestionSuite:
    """See `qguide.training.environment.GoldSuite`."""

    def __init__(self, name: str, questions: Sequence[Question], *, turns: int, measure: Measure) -> None:
        self.name = name
        self.tasks: Sequence[Task] = [question.task for question in questions]
        self._by_id = {question.id: question for question in questions}
        self._turns, self._measure = turns, measure

    def make(self, task: Task) -> QuestionEpisode:
        """A fresh, single-use episode of `task`."""
        return QuestionEpisode(self._by_id[task.id], turns=self._turns, measure=self._measure)

    def gold_replies(self, task: Task) -> list[str]:
        """A search for each page that holds the answer, as far as turns allow, and the answer."""
        question = self._by_id[task.id]
        pages = question.supporting[: self._turns - 1]
        searches = [react_reply(f"I search for {page}.", f"Search[{page}]") for page in pages]
        answer = question.answer
        return [*searches, react_reply(f"The answer is {answer}.", f"Finish[{answer}]")]

    def close(self) -> None:
        """Do nothing: there are no processes to stop."""


class HotPotQaConfig(NumberedConfig):
    """HotPotQA's `[environment]` table.

    Attributes:
        questions: file of questions with their paragraphs; without it questions are generated.
        name_set: names of the people and towns of generated questions. Two sets share none.
        turns: actions after which an episode ends.
        measure: reward of an answer: "em", exact match, or "f1".
    """

    name: Literal["hotpotqa"] = "hotpotqa"
    questions: Path | None = None
    name_set: int = Field(default=0, ge=0, lt=NAME_SETS)
    turns: int = Field(default=7, ge=1)
    measure: Measure = "em"


def build_suite(config: HotPotQaConfig) -> QuestionSuite:
    """The questions that `config` describes."""
    if config.questions is not None:
        name, questions = config.questions.name.partition(".")[0], read_questions(config.questions)
    else:
        seeds = range(config.first_seed, config.first_seed + config.count)
        name, questions = "generated", [generated_question(seed, config.name_set) for seed in seeds]
    return QuestionSuite(name, questions, turns=config.turns, measure=config.measure)


HOTPOTQA = EnvironmentBundle(
    name="hotpotqa",
    config=HotPotQaConfig,
    build_suite=build_suite,
    chat=ChatFormat(SYSTEM),
    task_markers=(TaskMarker(QUESTION_OPENING),),
    void_observation=USAGE,
    packages=("bm25s",),
    harmless="Search[xyzzy]",
)
