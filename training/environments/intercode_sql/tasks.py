"""InterCode-SQL's tasks: a question, the query that answers it, and the database's tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from qguide.qnet.errors import ConfigError
from qguide.training.environment import Task


@dataclass(frozen=True, slots=True)
class SqlTask:
    """One question.

    Attributes:
        id: "DATABASE/NUMBER".
        database: name of the database, as queries may write it before a table's.
        gold: the query whose result is the answer.
        hardness: Spider's class of `gold`: easy, medium, hard or extra.
        tables: columns of each table, as the benchmark tells them to an agent.
    """

    id: str
    database: str
    question: str
    gold: str
    hardness: str
    tables: Mapping[str, tuple[str, ...]]

    @property
    def task(self) -> Task:
        """The task as the jobs know it."""
        return Task(self.id, self.hardness, self.database)


class _TaskEntry(BaseModel):
    """One entry of the benchmark's file, under its names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_id: int
    db: str
    query: str
    gold: str
    hardness: str
    db_tables: dict[str, tuple[str, ...]]


def read_tasks(path: Path) -> list[SqlTask]:
    """The tasks of a file in the benchmark's format: a JSON list."""
    try:
        entries = TypeAdapter(list[_TaskEntry]).validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"tasks = {path}: {error.strerror}; name a file of tasks") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"tasks = {path}: {place}: {first['msg']}; name a list of InterCode-SQL's tasks"
        ) from error
    return [
        SqlTask(
            id=task_id_of(entry.db, entry.task_id),
            database=entry.db,
            question=entry.query,
            gold=entry.gold,
            hardness=entry.hardness,
            tables=entry.db_tables,
        )
        for entry in entries
    ]


def task_id_of(database: str, number: int) -> str:
    """Id of the benchmark's task of that number."""
    return f"{database}/{number}"


def describe_task(task: SqlTask, *, show_schema: bool) -> str:
    """The first observation: the question and, where it is shown, the schema."""
    lines = [f"Database: {task.database}"]
    if show_schema:
        lines += [f"{name}({', '.join(columns)})" for name, columns in task.tables.items()]
    return "\n".join([*lines, "", f"Question: {task.question}"])
