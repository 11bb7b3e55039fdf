"""Subjects of the environment contract, one line per environment and engine."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from training.environment import EnvironmentBundle, EnvironmentConfig
from training.environments.alfworld.bundle import ALFWORLD, AlfWorldConfig
from training.environments.corridor import CORRIDOR, CorridorConfig
from training.environments.hotpotqa.bundle import HOTPOTQA, HotPotQaConfig
from training.environments.intercode_sql.bundle import INTERCODE_SQL, InterCodeSqlConfig


@dataclass(frozen=True, slots=True)
class Subject:
    """An implementation under the contract.

    Attributes:
        config: two tasks of it, or a function that finds them or skips the test.
        harmless: an action that is valid at the start of every task and changes nothing.
        meaningless: an action that means nothing in any task.
    """

    bundle: EnvironmentBundle[Any]
    config: EnvironmentConfig | Callable[[pytest.FixtureRequest], EnvironmentConfig]
    harmless: str
    meaningless: str

    def config_of(self, request: pytest.FixtureRequest) -> EnvironmentConfig:
        """The tasks to play."""
        return self.config if isinstance(self.config, EnvironmentConfig) else self.config(request)


def real_games(request: pytest.FixtureRequest) -> EnvironmentConfig:
    """Two real ALFWorld games in the Python engine, if the games are available."""
    return AlfWorldConfig(games=request.getfixturevalue("real_games_dir"), limit=2)


def real_engine(request: pytest.FixtureRequest) -> EnvironmentConfig:
    """The same games in ALFWorld's own engine, where it is installed."""
    request.getfixturevalue("textworld_installed")
    games = request.getfixturevalue("real_games_dir")
    return AlfWorldConfig(games=games, limit=2, engine="textworld", processes=1)


def real_questions(request: pytest.FixtureRequest) -> EnvironmentConfig:
    """Two of InterCode-SQL's tasks, if its data is available."""
    tasks, databases = request.getfixturevalue("intercode_sql_data")
    return InterCodeSqlConfig(tasks=tasks, databases=databases, limit=2)


def hotpotqa_questions(request: pytest.FixtureRequest) -> EnvironmentConfig:
    """Two of HotPotQA's questions, if they are available."""
    return HotPotQaConfig(questions=request.getfixturevalue("hotpotqa_questions"), limit=2)


SUBJECTS = {
    "fake": Subject(CORRIDOR, CorridorConfig(count=2), "look", "juggle the moon"),
    "alfworld-generated": Subject(ALFWORLD, AlfWorldConfig(count=2), "look", "juggle the moon"),
    "alfworld-python": Subject(ALFWORLD, real_games, "look", "juggle the moon"),
    "alfworld-textworld": Subject(ALFWORLD, real_engine, "look", "juggle the moon"),
    "hotpotqa-generated": Subject(
        HOTPOTQA, HotPotQaConfig(count=2), "Search[xyzzy]", "juggle the moon"
    ),
    "hotpotqa": Subject(HOTPOTQA, hotpotqa_questions, "Search[xyzzy]", "juggle the moon"),
    "intercode-sql-generated": Subject(
        INTERCODE_SQL, InterCodeSqlConfig(count=2), "SHOW TABLES", "juggle the moon"
    ),
    "intercode-sql": Subject(INTERCODE_SQL, real_questions, "SHOW TABLES", "juggle the moon"),
}
