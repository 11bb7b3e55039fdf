"""Subjects of the environment contract, one line per environment and engine."""

from collections.abc import Callable

import pytest

from qguide.training.environment import EnvironmentConfig
from qguide.training.environments.alfworld.bundle import AlfWorldConfig
from qguide.training.environments.corridor import CorridorConfig
from qguide.training.environments.hotpotqa.bundle import HotPotQaConfig
from qguide.training.environments.intercode_sql.bundle import InterCodeSqlConfig, InterCodeSqlToolsConfig
from qguide.training.environments.sciworld.bundle import SciWorldConfig
from qguide.training.environments.webshop.bundle import WebShopConfig

Subject = EnvironmentConfig | Callable[[pytest.FixtureRequest], EnvironmentConfig]
"""Two tasks of an implementation, or a function that finds them or skips the test."""


def real_games(request: pytest.FixtureRequest) -> EnvironmentConfig:
    """Two real ALFWorld games in the Python engine, if the games are available."""
    return AlfWorldConfig(games=request.getfixturevalue("real_games_dir"), limit=2)


def real_engine(request: pytest.FixtureRequest) -> EnvironmentConfig:
    """The same games in ALFWorld's own engine, where it is installed."""
    request.getfixturevalue("textworld_installed")
    games = request.getfixturevalue("real_games_dir")
    return AlfWorldConfig(games=games, limit=2, engine="textworld", processes=1)


def generated_in_engine(request: pytest.FixtureRequest) -> EnvironmentConfig:
    """Two generated games in ALFWorld's own engine, where it is installed."""
    request.getfixturevalue("textworld_installed")
    return AlfWorldConfig(count=2, engine="textworld", processes=1)


def real_questions(request: pytest.FixtureRequest) -> EnvironmentConfig:
    """Two of InterCode-SQL's tasks, if its data is available."""
    tasks, databases = request.getfixturevalue("intercode_sql_data")
    return InterCodeSqlConfig(tasks=tasks, databases=databases, limit=2)


def questions_in_mariadb(request: pytest.FixtureRequest) -> EnvironmentConfig:
    """The same tasks in MariaDB, where that is installed."""
    tasks, _ = request.getfixturevalue("intercode_sql_data")
    dsn = request.getfixturevalue("intercode_sql_dsn")
    return InterCodeSqlConfig(tasks=tasks, dsn=dsn, limit=2)


def hotpotqa_questions(request: pytest.FixtureRequest) -> EnvironmentConfig:
    """Two of HotPotQA's questions, if they are available."""
    return HotPotQaConfig(questions=request.getfixturevalue("hotpotqa_questions"), limit=2)


def science_world(request: pytest.FixtureRequest) -> EnvironmentConfig:
    """Two short ScienceWorld tasks in its own simulator, where that and Java are installed."""
    request.getfixturevalue("sciworld_installed")
    return SciWorldConfig(limit=2, processes=1)


SUBJECTS: dict[str, Subject] = {
    "fake": CorridorConfig(count=2),
    "alfworld-generated": AlfWorldConfig(count=2),
    "alfworld-generated-textworld": generated_in_engine,
    "alfworld-python": real_games,
    "alfworld-textworld": real_engine,
    "hotpotqa-generated": HotPotQaConfig(count=2),
    "hotpotqa": hotpotqa_questions,
    "intercode-sql-generated": InterCodeSqlConfig(count=2),
    "intercode-sql": real_questions,
    "intercode-sql-mariadb": questions_in_mariadb,
    "intercode-sql-tools": InterCodeSqlToolsConfig(count=2),
    "sciworld": science_world,
    "webshop-generated": WebShopConfig(count=2),
}
