"""One HotPotQA episode: searches, lookups and one answer."""

import re
from dataclasses import dataclass
from typing import Final, Literal

from qnet.errors import EnvironmentFailureError
from training.environment import StepResult
from training.environments.hotpotqa.answers import exact_match, f1
from training.environments.hotpotqa.questions import Paragraph, Question
from training.environments.hotpotqa.search import ParagraphIndex, describe_found, sentences_with

QUESTION_OPENING: Final = "Question:"
FINISHED: Final = "Your answer is handed in."
USAGE: Final = "Nothing happens. Use Search[words], Lookup[words] or Finish[answer]."
Measure = Literal["em", "f1"]

_ACTION: Final = re.compile(r"(search|lookup|finish)\[(.*)\]", re.I | re.S)


@dataclass(frozen=True, slots=True)
class EpisodeOptions:
    """Length and reward of an episode.

    Attributes:
        turns: the episode ends after so many actions, answered or not.
        measure: reward of an answer: exact match or F1.
    """

    turns: int = 7
    measure: Measure = "em"


class QuestionEpisode:
    """See `training.environment.Environment`. Only an answer has a reward."""

    def __init__(self, question: Question, options: EpisodeOptions) -> None:
        """Prepare the episode; `reset` indexes the paragraphs."""
        self._question, self._options = question, options
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
        """Take "Search[words]", "Lookup[words]" or "Finish[answer]".

        Raises:
            EnvironmentFailureError: no episode is running.
        """
        if self._index is None:
            raise EnvironmentFailureError(f"step({action!r}): no episode is running; reset first")
        self._taken += 1
        over = self._taken >= self._options.turns
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
        measure = exact_match if self._options.measure == "em" else f1
        return measure(answer, self._question.answer)
