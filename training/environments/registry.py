"""Registry of the environments that jobs can name, one line for each.

[environment]
name = "alfworld"                    # a name in the registry
name = "my_package.shop:BUNDLE"      # or the import path of an `EnvironmentBundle`
name = "my_package.shop:make"        # or of a factory: Gymnasium's interface or TRL's
name = "shop"                        # or what a package calls it (`qguide.environments`)
name = "openenv:ws://127.0.0.1:8000" # or a server; `environment = "…"` is short for a table
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from qguide.qnet.errors import ConfigError
from qguide.qnet.support.operator_code import import_named, paths_by_name
from qguide.qnet.types import TaskMarker
from qguide.training.environment import EnvironmentBundle, EnvironmentConfig, Suite
from qguide.training.environments.adapters.build import (
    bundle_of_address,
    bundle_of_factory,
    is_address,
)

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
    path = name if ":" in name else environment_names().get(name)
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
        f"environment {name!r} is of type {type(bundle).__name__}; name an EnvironmentBundle or a "
        "factory"
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


AnyEnvironment = Annotated[
    EnvironmentConfig, SerializeAsAny(), BeforeValidator(_table_of_its_environment)
]
"""The `[environment]` field of a job, which has the fields of the environment that it names."""
