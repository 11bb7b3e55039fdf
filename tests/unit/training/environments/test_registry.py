"""A name becomes a suite, or the error says which names there are."""

from pathlib import Path
from typing import Any

import pytest

from qnet.errors import ConfigError
from training.environments.alfworld.engines.textworld import TextWorldEnvironment
from training.environments.registry import DEFAULT_COUNT, SuiteSpec, build_suite


def test_the_fake_needs_nothing() -> None:
    assert len(build_suite(SuiteSpec("fake")).tasks) == DEFAULT_COUNT
    ids = [task.id for task in build_suite(SuiteSpec("fake", limit=2, first_seed=5)).tasks]
    assert ids == ["corridor:5", "corridor:6"]


def test_alfworld_without_a_folder_is_generated() -> None:
    tasks = build_suite(SuiteSpec("alfworld", limit=2, first_seed=3)).tasks
    assert [task.source for task in tasks] == ["generated:3", "generated:4"]


def test_generated_games_are_for_either_engine() -> None:
    suite = build_suite(SuiteSpec("alfworld", engine="textworld", limit=1))
    assert isinstance(suite.make(suite.tasks[0]), TextWorldEnvironment)
    suite.close()


def test_an_empty_folder_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unpack"):
        build_suite(SuiteSpec("alfworld", games=tmp_path))


def test_an_unknown_name_lists_the_known() -> None:
    unknown: Any = "minecraft"
    with pytest.raises(ConfigError, match="alfworld, fake"):
        build_suite(SuiteSpec(unknown))
