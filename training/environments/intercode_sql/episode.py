"""One InterCode-SQL episode: queries, and a submission of the last result."""

from dataclasses import dataclass
from typing import Final

from qnet.errors import EnvironmentFailureError
from training.environment import StepResult
from training.environments.intercode_sql.database import Database, OpenDatabase, Records
from training.environments.intercode_sql.result_text import shortened, with_shape
from training.environments.intercode_sql.reward import execution_reward
from training.environments.intercode_sql.tasks import SqlTask, describe_task

SUBMIT: Final = "submit"
SUBMITTED: Final = "Submitted."


@dataclass(frozen=True, slots=True)
class EpisodeOptions:
    """Length and form of an episode.

    Attributes:
        turns: the episode ends after so many statements, submitted or not.
        show_schema: the first observation lists tables and columns.
        observation_chars: longer answers are cut.
        result_shape: an answer begins with its number of records and columns.
    """

    turns: int = 10
    show_schema: bool = True
    observation_chars: int = 1_000
    result_shape: bool = False

    def shown(self, text: str) -> str:
        """The form in which an agent sees an answer."""
        return shortened(with_shape(text) if self.result_shape else text, self.observation_chars)


class SqlEpisode:
    """See `training.environment.Environment`.

    Every result is rewarded as if the episode ended with it: queries change nothing, so trying
    them is free. The benchmark's reward is below 0 where the order of the records is mostly
    reversed; that counts 0 here.
    """

    def __init__(
        self,
        task: SqlTask,
        gold: Records | None,
        open_database: OpenDatabase,
        options: EpisodeOptions,
    ) -> None:
        """Prepare the episode; `reset` opens the database.

        Args:
            gold: records of the right answer, None if its query fails.
            open_database: gives the episode a connection of its own.
            options: length and form.
        """
        self._task, self._gold, self._open = task, gold, open_database
        self._options = options
        self._database: Database | None = None
        self._reward = 0.0
        self._taken = 0

    def reset(self) -> str:
        """The question and what is known of the database."""
        self.close()
        self._database = self._open()
        self._reward, self._taken = 0.0, 0
        return describe_task(self._task, show_schema=self._options.show_schema)

    def step(self, action: str) -> StepResult:
        """Run one statement, or submit the last one's result by the word "submit".

        Raises:
            EnvironmentFailureError: no episode is running.
        """
        if self._database is None:
            raise EnvironmentFailureError(f"step({action!r}): no episode is running; reset first")
        self._taken += 1
        over = self._taken >= self._options.turns
        if action.strip().rstrip(";").lower() == SUBMIT:
            self.close()
            return StepResult(SUBMITTED, self._reward, terminated=True)
        result = self._database.execute(action.strip())
        self._reward = max(0.0, execution_reward(result.records, self._gold))
        if over:
            self.close()
        return StepResult(
            self._options.shown(result.text),
            self._reward,
            terminated=over,
            valid=result.records is not None,
        )

    def close(self) -> None:
        """Close the database; safe to call twice."""
        if self._database is not None:
            self._database.close()
        self._database = None
