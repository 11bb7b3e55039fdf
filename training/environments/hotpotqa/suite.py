"""HotPotQA's tasks: the questions of a file, or generated ones."""

from collections.abc import Sequence

from training.environment import Task
from training.environments.hotpotqa.episode import EpisodeOptions, QuestionEpisode
from training.environments.hotpotqa.questions import Question
from training.trajectory import react_reply


class QuestionSuite:
    """See `training.environment.GoldSuite`."""

    def __init__(self, name: str, questions: Sequence[Question], options: EpisodeOptions) -> None:
        """Prepare the tasks.

        Args:
            name: of the suite, in results.
            questions: with distinct ids.
            options: of every episode.
        """
        self.name = name
        self.tasks: Sequence[Task] = [question.task for question in questions]
        self._by_id = {question.id: question for question in questions}
        self._options = options

    def make(self, task: Task) -> QuestionEpisode:
        """A fresh, single-use episode of `task`."""
        return QuestionEpisode(self._by_id[task.id], self._options)

    def gold_replies(self, task: Task) -> list[str]:
        """A search for each page that holds the answer, as far as turns allow, and the answer."""
        question = self._by_id[task.id]
        pages = question.supporting[: self._options.turns - 1]
        searches = [react_reply(f"I search for {page}.", f"Search[{page}]") for page in pages]
        answer = question.answer
        return [*searches, react_reply(f"The answer is {answer}.", f"Finish[{answer}]")]

    def close(self) -> None:
        """Do nothing: there are no processes to stop."""
