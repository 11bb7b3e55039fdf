"""InterCode-SQL's tasks: the benchmark's, with its databases, or generated ones."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path

from qguide.qnet.errors import ConfigError
from qguide.qnet.support.extras import install
from qguide.training.environment import Task
from qguide.training.environments.intercode_sql.database import (
    OpenDatabase,
    Records,
    open_file,
    open_script,
)
from qguide.training.environments.intercode_sql.episode import (
    EpisodeOptions,
    SqlEpisode,
    SqlToolEpisode,
)
from qguide.training.environments.intercode_sql.generated import (
    DATABASE,
    generated_task,
    library_script,
)
from qguide.training.environments.intercode_sql.tasks import SqlTask, read_tasks

CACHED_ANSWERS = 2_048


class SqlSuite:
    """See `qguide.training.environment.Suite`."""

    def __init__(
        self,
        name: str,
        tasks: Sequence[SqlTask],
        opener: Callable[[SqlTask], OpenDatabase],
        options: EpisodeOptions,
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

    def opener(task: SqlTask) -> OpenDatabase:
        return partial(open_file, paths[task.database], task.database)

    return SqlSuite(tasks.stem, read, opener, options)


def mariadb_suite(tasks: Path, dsn: str, options: EpisodeOptions) -> SqlSuite:
    """The tasks of a file of the benchmark, over a MariaDB server that holds its dump."""
    if find_spec("pymysql") is None:
        raise ConfigError(f"dsn = {dsn} needs PyMySQL; {install('mariadb')}")
    from qguide.training.environments.intercode_sql.mariadb import MariaDatabase, require_reader

    read = read_tasks(tasks)
    require_reader(dsn, [task.database for task in read])

    def opener(task: SqlTask) -> OpenDatabase:
        return partial(MariaDatabase, dsn, task.database)

    return SqlSuite(tasks.stem, read, opener, options)


def generated_suite(first_seed: int, count: int, options: EpisodeOptions) -> SqlSuite:
    """Generated tasks, each over a library of its own."""
    seeds = {generated_task(seed).id: seed for seed in range(first_seed, first_seed + count)}
    tasks = [generated_task(seed) for seed in seeds.values()]

    def opener(task: SqlTask) -> OpenDatabase:
        return partial(open_script, library_script(seeds[task.id]), DATABASE)

    return SqlSuite("generated", tasks, opener, options)
