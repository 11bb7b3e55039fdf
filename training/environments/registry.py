"""Registry of the environments that jobs can name, one line for each.

[environment]
name = "alfworld"                    # a name in the registry
name = "my_package.shop:BUNDLE"      # or the import path of an `EnvironmentBundle`
name = "my_package.shop:make"        # or of a factory: Gymnasium's interface or TRL's
name = "shop"                        # or what a package calls it (`qguide.environments`)
name = "openenv:ws://127.0.0.1:8000" # or a server; `environment = "…"` is short for a table
shuffle_seed = 0
slice = "0:300"                      # with the same seed, "300:1300" gives none of these tasks

A job plays the tasks that its table selects. A split is fixed by its seed and slice, or by a file
of task ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from qguide.qnet.errors import ConfigError
from qguide.qnet.packages import import_named, paths_by_name
from qguide.qnet.types import TaskMarker
from qguide.training.environment import Environment, EnvironmentBundle, EnvironmentConfig, GoldSuite, Suite, Task
from qguide.training.environments.adapters.build import bundle_of_address, bundle_of_factory, is_address
from qguide.training.shipped_files import shipped_path

ENVIRONMENTS = {
    "alfworld": "qguide.training.environments.alfworld.bundle:ALFWORLD",
    "fake": "qguide.training.environments.corridor:CORRIDOR",
    "hotpotqa": "qguide.training.environments.hotpotqa.bundle:HOTPOTQA",
    "intercode-sql": "qguide.training.environments.intercode_sql.bundle:INTERCODE_SQL",
    "intercode-sql-tools": "qguide.training.environments.intercode_sql.bundle:INTERCODE_SQL_TOOLS",
    "sciworld": "qguide.training.environments.sciworld.bundle:SCIWORLD",
    "webshop": "qguide.training.environments.webshop.bundle:WEBSHOP",
}
"""Import path of each name; a bundle and its engine are imported when a job names it."""

DEFAULT_ENVIRONMENT = "alfworld"


def environment_names() -> dict[str, str]:
    """Import path of each name, those that installed packages bring included."""
    return paths_by_name("environments", ENVIRONMENTS)


def find_environment(name: str) -> EnvironmentBundle[Any]:
    """The bundle with that name, import path or address."""
    if is_address(name):
        return bundle_of_address(name)
    path = name if ":" in name else ENVIRONMENTS.get(name) or environment_names().get(name)
    if path is None:
        raise ConfigError(
            f"environment {name!r} is unknown; name one of {', '.join(environment_names())}, an "
            'import path such as "my_package.shop:BUNDLE", or a server such as '
            '"openenv:ws://HOST:PORT"'
        )
    try:
        bundle = import_named(path)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"environment {name!r} cannot be imported: {error}; install its package, start in the "
            f"folder that has it, or name one of {', '.join(environment_names())}"
        ) from error
    if isinstance(bundle, EnvironmentBundle):
        return bundle
    if callable(bundle):
        return bundle_of_factory(name, bundle)
    raise ConfigError(
        f"environment {name!r} is of type {type(bundle).__name__}; name an EnvironmentBundle or a factory"
    )


def task_markers_of(name: str) -> tuple[TaskMarker, ...]:
    """The markers of an environment's tasks; none where the name is empty or unknown."""
    known = (":" in name or name in environment_names()) and not is_address(name)
    return find_environment(name).task_markers if known else ()


def environment_config(values: Mapping[str, object]) -> EnvironmentConfig:
    """The validated `[environment]` table of the environment that `values` name."""
    bundle = find_environment(str(values.get("name", DEFAULT_ENVIRONMENT)))
    config: EnvironmentConfig = bundle.config.model_validate({"name": bundle.name, **values})
    return config


def default_environment() -> EnvironmentConfig:
    """The environment of a job whose file has no `[environment]` table."""
    return environment_config({})


def build_suite(config: EnvironmentConfig) -> Suite:
    """Build the suite of all tasks that `config` describes, before any are selected."""
    suite: Suite = find_environment(config.name).build_suite(config)
    return suite


def table_of(value: object) -> object:
    """The table that a name alone is short for; anything else as it is."""
    return {"name": value} if isinstance(value, str) else value


def _table_of_its_environment(value: object) -> object:
    table = table_of(value)
    return environment_config(table) if isinstance(table, Mapping) else value


AnyEnvironment = Annotated[EnvironmentConfig, SerializeAsAny(), BeforeValidator(_table_of_its_environment)]
"""The `[environment]` field of a job, which has the fields of the environment that it names."""


@dataclass(slots=True)
class SelectedSuite:
    """Selected tasks of a suite, and the bundle of their environment."""

    name: str
    tasks: Sequence[Task]
    suite: Suite
    environment: EnvironmentBundle[Any]

    def make(self, task: Task) -> Environment:
        """A fresh, single-use episode of `task`."""
        return self.suite.make(task)

    def require_gold(self) -> GoldSuite:
        """The suite, as one that knows solutions of its tasks."""
        if not isinstance(self.suite, GoldSuite):
            raise ConfigError(
                f"environment {self.environment.name!r} has no solutions on record, which player 'gold' and policy "
                "'scripted' play; set another, or name an environment that has them"
            )
        return self.suite

    def close(self) -> None:
        """Stop worker processes; safe to call twice."""
        self.suite.close()


def build_selected_suite(config: EnvironmentConfig) -> SelectedSuite:
    """Build the suite that `config` describes, with the tasks that it selects, in their order."""
    suite = build_suite(config)
    tasks = select_tasks(
        suite.tasks,
        task_ids=read_task_ids(config.task_ids) if config.task_ids else None,
        shuffle_seed=config.shuffle_seed,
        cut=config.slice,
        limit=config.limit,
    )
    bundle = find_environment(config.name)
    if bundle.configure is not None:
        bundle = bundle.configure(config)
    return SelectedSuite(suite.name, tasks, suite, bundle)


def select_tasks(
    tasks: Sequence[Task],
    *,
    task_ids: Sequence[str] | None = None,
    shuffle_seed: int | None = None,
    cut: str = ":",
    limit: int | None = None,
) -> list[Task]:
    """Filter tasks by id, then shuffle, then slice, then thin out.

    Args:
        tasks: tasks in any order; once shuffled, the result depends only on their ids.
        cut: slice "first:end", counted from 0; either may be left out.
        limit: maximum number of tasks, spread evenly over the slice.
    """
    if task_ids is not None:
        tasks = _with_ids(tasks, task_ids)
    if shuffle_seed is not None:
        tasks = sorted(tasks, key=lambda task: task.id)
        Random(shuffle_seed).shuffle(tasks)
    first, end = (int(part) if part else None for part in cut.split(":"))
    selected = list(tasks[first:end])
    if not selected:
        raise ConfigError(f"slice {cut!r} selects none of {len(tasks)} tasks; choose one within 0:{len(tasks)}")
    if limit is not None and limit < len(selected):
        selected = [selected[index * len(selected) // limit] for index in range(limit)]
    return selected


def _with_ids(tasks: Sequence[Task], task_ids: Sequence[str]) -> list[Task]:
    by_id = {task.id: task for task in tasks}
    missing = [task_id for task_id in task_ids if task_id not in by_id]
    if missing:
        raise ConfigError(
            f"{len(missing)} of {len(task_ids)} task ids are not among the {len(tasks)} tasks; "
            f"the first is {missing[0]!r}; check the list of ids and where the tasks come from"
        )
    return [by_id[task_id] for task_id in dict.fromkeys(task_ids)]


def read_task_ids(path: Path) -> list[str]:
    """Read a file of ids, one per line; empty lines and lines that start with # do not count."""
    try:
        lines = shipped_path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"task_ids = {path}: {error.strerror}; name a file of ids") from error
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
