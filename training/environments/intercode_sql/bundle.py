"""InterCode-SQL as the jobs know it: answer a question by queries (Yang et al., 2023).

[environment]
name = "intercode-sql"
tasks = "data/tasks.json"            # the benchmark's; without both: a generated library
databases = "data/sqlite"            # a folder of SQLite files
# dsn = "mysql://reader@localhost"   # in place of databases: a MariaDB server that holds the dump
task_ids = "training/environments/intercode_sql/folds/1.txt"

The name "intercode-sql-tools" has the same tasks with tool calls in the place of text.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from qguide.qnet.errors import ConfigError
from qguide.qnet.packages import install
from qguide.qnet.types import ToolCall
from qguide.training.environment import EnvironmentBundle, NumberedConfig, Task
from qguide.training.environments.intercode_sql.database import OpenDatabase, Records, open_file, open_script
from qguide.training.environments.intercode_sql.episode import (
    EXECUTE_SQL,
    SQL_TOOL,
    EpisodeOptions,
    SqlEpisode,
    SqlToolEpisode,
)
from qguide.training.environments.intercode_sql.tasks import (
    DATABASE,
    SqlTask,
    generated_task,
    library_script,
    read_tasks,
)
from qguide.training.trajectory import ChatFormat

CACHED_ANSWERS = 2_048


class SqlSuite:
    """See `qguide.training.environment.Suite`."""

    def __init__(
        self, name: str, tasks: Sequence[SqlTask], opener: Callable[[SqlTask], OpenDatabase], options: EpisodeOptions
    ) -> None:
        """Open nothing yet."""
        self.name = name
        self.tasks: Sequence[Task] = [task.task for task in tasks]
        self._by_id = {task.id: task for task in tasks}
        self._opener = opener
        self._gold = lru_cache(CACHED_ANSWERS)(self._run_gold)
        self._options = options

    def make(self, task: Task) -> SqlEpisode:
        """A fresh, single-use episode of `task`."""
        sql_task = self._by_id[task.id]
        episode = SqlToolEpisode if self._options.tool_calls else SqlEpisode
        return episode(sql_task, self._gold(task.id), self._opener(sql_task), self._options)

    def close(self) -> None:
        """Do nothing: an episode owns its connection."""

    def _run_gold(self, task_id: str) -> Records | None:
        task = self._by_id[task_id]
        database = self._opener(task)()
        try:
            return database.execute(task.gold).records
        finally:
            database.close()


def file_suite(tasks: Path, databases: Path, options: EpisodeOptions) -> SqlSuite:
    """The tasks of a file of the benchmark, over a folder of SQLite files."""
    read = read_tasks(tasks)
    paths = {task.database: databases / f"{task.database.lower()}.sqlite" for task in read}
    if missing := sorted(path.name for path in paths.values() if not path.is_file()):
        raise ConfigError(
            f"databases = {databases}: {len(missing)} of {len(paths)} files are missing, the "
            f"first is {missing[0]}; name the folder of the unpacked SQLite files"
        )
    return SqlSuite(tasks.stem, read, lambda task: partial(open_file, paths[task.database], task.database), options)


def mariadb_suite(tasks: Path, dsn: str, options: EpisodeOptions) -> SqlSuite:
    """The tasks of a file of the benchmark, over a MariaDB server that holds its dump."""
    if find_spec("pymysql") is None:
        raise ConfigError(f"dsn = {dsn} needs PyMySQL; {install('mariadb')}")
    from qguide.training.environments.intercode_sql.mariadb import MariaDatabase, require_reader

    read = read_tasks(tasks)
    require_reader(dsn, [task.database for task in read])
    return SqlSuite(tasks.stem, read, lambda task: partial(MariaDatabase, dsn, task.database), options)


def generated_suite(first_seed: int, count: int, options: EpisodeOptions) -> SqlSuite:
    """Generated tasks, each over a library of its own."""
    seeds = {generated_task(seed).id: seed for seed in range(first_seed, first_seed + count)}
    tasks = [generated_task(seed) for seed in seeds.values()]
    return SqlSuite(
        "generated", tasks, lambda task: partial(open_script, library_script(seeds[task.id]), DATABASE), options
    )


_FENCE: Final = re.compile(r"```(?:sql)?[ \t]*\n?(.*?)```", re.I | re.S)
_EXECUTE: Final = re.compile(r"execute\[(.*)\]", re.I | re.S)


def parse_sql(reply: str) -> str:
    """The statement that a reply acts by, over as many lines as it has.

    The last fenced block counts, so that thoughts may come before it.
    """
    blocks = _FENCE.findall(reply)
    text = (blocks[-1] if blocks else reply).strip()
    wrapped = _EXECUTE.fullmatch(text)
    return wrapped.group(1).strip() if wrapped else text


SYSTEM: Final = (
    "Answer the question by SQL, one statement at a time, alone or in a ```sql block. "
    "Reply submit to hand in the last result."
)


TOOL_SYSTEM: Final = (
    f"Answer the question by SQL: call {EXECUTE_SQL} with one statement at a time. "
    "A reply without a call hands in the last result."
)


class SqlConfig(NumberedConfig):
    """InterCode-SQL's `[environment]` table, whatever the form of its actions.

    Attributes:
        tasks: the benchmark's file of tasks; without it tasks are generated.
        databases: folder of the SQLite files, named after the databases in lower case.
        dsn: in place of `databases`, a MariaDB server that holds the benchmark's MySQL dump and
            speaks its dialect, as mysql://USER@HOST:PORT or mysql://USER@localhost/PATH/OF/SOCKET.
            The password is in MYSQL_PWD.
        show_schema: the first observation lists tables and columns.
        turns: statements after which an episode ends.
        observation_chars: longer answers are cut.
        result_shape: an answer begins with its number of records and columns.
    """

    tasks: Path | None = None
    databases: Path | None = None
    dsn: str = Field(default="", pattern=r"^(mysql://[^:/@]+@[^@]+)?$")
    show_schema: bool = True
    turns: int = Field(default=10, ge=1)
    observation_chars: int = Field(default=1_000, ge=1)
    result_shape: bool = False

    @property
    def options(self) -> EpisodeOptions:
        """Length and form of every episode."""
        return EpisodeOptions(self.turns, self.show_schema, self.observation_chars, self.result_shape)

    @model_validator(mode="after")
    def _tasks_have_databases(self) -> Self:
        if bool(self.tasks) != bool(self.databases or self.dsn) or (self.databases and self.dsn):
            raise ValueError(
                f"tasks is {self.tasks}, databases {self.databases} and dsn {self.dsn!r}; name "
                "tasks and one of the other two, or none of them for generated tasks"
            )
        return self


class InterCodeSqlConfig(SqlConfig):
    """InterCode-SQL's `[environment]` table."""

    name: Literal["intercode-sql"] = "intercode-sql"


class InterCodeSqlToolsConfig(SqlConfig):
    """The `[environment]` table of InterCode-SQL with tool calls."""

    name: Literal["intercode-sql-tools"] = "intercode-sql-tools"

    @property
    def options(self) -> EpisodeOptions:
        """Length and form of every episode."""
        return replace(super().options, tool_calls=True)


def build_suite(config: SqlConfig) -> SqlSuite:
    """The tasks that `config` describes."""
    if config.tasks is not None and config.databases is not None:
        return file_suite(config.tasks, config.databases, config.options)
    if config.tasks is not None:
        return mariadb_suite(config.tasks, config.dsn, config.options)
    return generated_suite(config.first_seed, config.count, config.options)


def full_answer(reward: float, terminated: bool) -> bool:
    """Success: the last result is the right one, be it submitted or cut off."""
    return reward >= 1.0


INTERCODE_SQL = EnvironmentBundle(
    name="intercode-sql",
    config=InterCodeSqlConfig,
    build_suite=build_suite,
    chat=ChatFormat(SYSTEM, parse_sql),
    is_success=full_answer,
    harmless="SHOW TABLES",
)

INTERCODE_SQL_TOOLS = EnvironmentBundle(
    name="intercode-sql-tools",
    config=InterCodeSqlToolsConfig,
    build_suite=build_suite,
    chat=ChatFormat(TOOL_SYSTEM, str.strip, tools=(SQL_TOOL,)),
    is_success=full_answer,
    harmless=ToolCall(EXECUTE_SQL, '{"query": "SHOW TABLES"}'),
)
