"""HotPotQA as the jobs know it: answer a question by search in its paragraphs.

[environment]
name = "hotpotqa"
questions = "data/hotpot_dev_distractor_v1.json"    # without it: generated questions
slice = "0:500"
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from qguide.qnet.types import TaskMarker
from qguide.training.environment import EnvironmentBundle, NumberedConfig, Task
from qguide.training.environments.hotpotqa.episode import QUESTION_OPENING, USAGE, Measure, QuestionEpisode
from qguide.training.environments.hotpotqa.questions import NAME_SETS, Question, generated_question, read_questions
from qguide.training.trajectory import ChatFormat, react_reply

SYSTEM: Final = (
    "Answer the question from the pages of a small encyclopedia. Each reply is a thought and an "
    'action, "Thought: …" and "Action: …" on two lines. Search[words] shows the page that fits '
    "best, Lookup[words] the next sentence of that page that has these words, and Finish[answer] "
    "hands in your answer, which should be a name, a number, yes or no, or a few words."
)


class QuestionSuite:
    """See `qguide.training.environment.GoldSuite`."""

    def __init__(self, name: str, questions: Sequence[Question], *, turns: int, measure: Measure) -> None:
        """Prepare the tasks."""
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
