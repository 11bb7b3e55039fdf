"""One InterCode-SQL episode: queries, and a submission of the last result."""

import ast
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import scipy

from qguide.qnet.errors import EnvironmentFailureError
from qguide.qnet.types import ToolCall
from qguide.training.environment import StepResult
from qguide.training.environments.intercode_sql.database import ERROR, OpenDatabase, ReadOnlyDatabase, Records
from qguide.training.environments.intercode_sql.tasks import SqlTask, describe_task
from qguide.training.trajectory import arguments_of, function_tool


def execution_reward(answer: Sequence[object] | None, gold: Sequence[object] | None) -> float:
    """IoU of the records times Kendall's tau-b of the common ones, in [-1, 1].

    Where tau is not defined (one common record, or all of them equal) the IoU alone counts; where
    it is, the product is rounded to hundredths. All as the benchmark's published code has it.
    """
    if answer is None or gold is None:
        return 0.0
    overlap = record_overlap(answer, gold)
    answered, wanted = _texts(answer), _texts(gold)
    common = Counter(answered) & Counter(wanted)
    order = _tau(_kept(answered, common), _kept(wanted, common))
    return overlap if math.isnan(order) else round(overlap * order, 2)


def record_overlap(answer: Sequence[object], gold: Sequence[object]) -> float:
    """IoU of two lists of records as multisets of texts; 1 if both are empty."""
    answered, wanted = Counter(_texts(answer)), Counter(_texts(gold))
    union = answered | wanted
    return (answered & wanted).total() / union.total() if union else 1.0


def _texts(records: Sequence[object]) -> list[str]:
    return [str(record) for record in records]


def _kept(records: Iterable[str], common: Counter[str]) -> list[str]:
    """The records that are common, each as often as it is, in their order."""
    left = common.copy()
    kept = []
    for record in records:
        if left[record] > 0:
            left[record] -= 1
            kept.append(record)
    return kept


def _tau(one: Sequence[str], other: Sequence[str]) -> float:
    """Kendall's tau-b of two lists by alphabetical rank; nan where they are constant.

    It asks if the records at the same places of both lists are ranked alike, so two lists in one
    order have 1, whichever it is.
    """
    if len(set(one)) < 2:
        return math.nan
    ranks = {text: rank for rank, text in enumerate(sorted(set(one)))}
    pair = ([ranks[text] for text in one], [ranks[text] for text in other])
    return float(scipy.stats.kendalltau(*pair).statistic)


SUBMIT: Final = "submit"
SUBMITTED: Final = "Submitted."

EXECUTE_SQL: Final = "execute_sql"
SQL_TOOL: Final = function_tool(
    EXECUTE_SQL,
    "Run one SQL statement on the database and return its records.",
    {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "The statement.", "examples": ["SHOW TABLES"]}},
        "required": ["query"],
    },
)

_CALLS: Final = re.compile(r"(?:Decimal|datetime\.\w+)\([^)]*\)")


@dataclass(frozen=True, slots=True)
class EpisodeOptions:
    """Length and form of an episode; see `bundle.SqlConfig`."""

    turns: int = 10
    show_schema: bool = True
    observation_chars: int = 1_000
    result_shape: bool = False
    tool_calls: bool = False

    def shown(self, text: str) -> str:
        """The form in which an agent sees an answer."""
        return shortened(with_shape(text) if self.result_shape else text, self.observation_chars)


class SqlEpisode:
    """See `qguide.training.environment.Environment`.

    Every result is rewarded as if the episode ended with it: queries change nothing, so trying
    them is free. The benchmark's reward is below 0 where the order of the records is mostly
    reversed; that counts 0 here.
    """

    def __init__(
        self, task: SqlTask, gold: Records | None, open_database: OpenDatabase, options: EpisodeOptions
    ) -> None:
        """Prepare the episode; `reset` opens the database."""
        self._task, self._gold, self._open = task, gold, open_database
        self._options = options
        self._database: ReadOnlyDatabase | None = None
        self._reward = 0.0
        self._taken = 0

    def reset(self) -> str:
        """The question and what is known of the database."""
        self.close()
        self._database = self._open()
        self._reward, self._taken = 0.0, 0
        return describe_task(self._task, show_schema=self._options.show_schema)

    def step(self, action: str) -> StepResult:
        """Run one statement, or submit the last one's result by the word "submit"."""
        if action.strip().rstrip(";").lower() == SUBMIT:
            return self._submit()
        return self._execute(action)

    def close(self) -> None:
        """Close the database; safe to call twice."""
        if self._database is not None:
            self._database.close()
        self._database = None

    def _submit(self) -> StepResult:
        self._running("submit")
        self.close()
        return StepResult(SUBMITTED, self._reward, terminated=True)

    def _execute(self, statement: str) -> StepResult:
        result = self._running(statement).execute(statement.strip())
        self._reward = max(0.0, execution_reward(result.records, self._gold))
        return self._answer(self._options.shown(result.text), valid=result.records is not None)

    def _answer(self, observation: str, *, valid: bool) -> StepResult:
        """The answer to one turn, the last one of which ends the episode."""
        self._taken += 1
        over = self._taken >= self._options.turns
        if over:
            self.close()
        return StepResult(observation, self._reward, terminated=over, valid=valid)

    def _running(self, action: str) -> ReadOnlyDatabase:
        if self._database is None:
            raise EnvironmentFailureError(f"step({action!r}): no episode is running; reset first")
        return self._database


class SqlToolEpisode(SqlEpisode):
    """The same by tool calls: `execute_sql` runs a statement, a reply without a call submits.

    Agents that call tools end their turn by a reply without a call, so no second tool is needed.
    See `qguide.training.environment.ToolEnvironment`.
    """

    def step(self, action: str) -> StepResult:
        """Submit the last result, whatever the reply says."""
        return self._submit()

    def call(self, call: ToolCall) -> StepResult:
        """Run the statement of one call; any other call takes a turn and changes nothing."""
        query = (arguments_of(call) or {}).get("query")
        if call.name == EXECUTE_SQL and isinstance(query, str):
            return self._execute(query)
        self._running(call.name)
        return self._answer(f'Call {EXECUTE_SQL} with {{"query": "…"}}.', valid=False)


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters, and how many were cut."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most} characters more)"


def with_shape(text: str) -> str:
    """A result after its number of records and columns; any other text as it is.

    A small model counts badly, and the shape of a result says much about whether it answers the
    question: "how many" has one record of one column.
    """
    records = parse_records(text)
    if records is None:
        return text
    width = len(records[0]) if records and isinstance(records[0], tuple) else 0
    null = any(isinstance(record, tuple) and None in record for record in records)
    return f"{len(records)} records, {width} columns{', NULL' if null else ''}: {text}"


def parse_records(text: str) -> Sequence[object] | None:
    """The records that a text prints; None for an error or anything else.

    Decimals and dates are printed as calls of Python; they become their text.
    """
    if text.startswith(ERROR):
        return None
    try:
        records = ast.literal_eval(_CALLS.sub(lambda call: repr(call.group()), text))
    except (ValueError, SyntaxError):
        return None
    return records if isinstance(records, list) else None
