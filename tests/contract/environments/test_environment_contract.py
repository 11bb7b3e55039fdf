"""What every environment and its suite promise, whichever engine plays."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from qnet.errors import EnvironmentFailureError
from training.environment import Environment, Suite
from training.environments.registry import SuiteSpec, build_suite

Kind = Literal["fake", "generated", "python", "textworld"]


def spec_of(kind: Kind, request: pytest.FixtureRequest) -> SuiteSpec:
    """Two tasks for each implementation; real games only where they are at hand."""
    if kind == "fake":
        return SuiteSpec("fake", limit=2)
    if kind == "generated":
        return SuiteSpec("alfworld", limit=2)
    games: Path = request.getfixturevalue("real_games_dir")
    if kind == "textworld":
        request.getfixturevalue("textworld_installed")
    return SuiteSpec("alfworld", games=games, engine=kind, limit=2, processes=1)


@pytest.fixture(scope="module", params=["fake", "generated", "python", "textworld"])
def suite(request: pytest.FixtureRequest) -> Iterator[Suite]:
    """A suite of each kind."""
    suite = build_suite(spec_of(request.param, request))
    yield suite
    suite.close()


@pytest.fixture
def environment(suite: Suite) -> Iterator[Environment]:
    """An episode of the first task."""
    environment = suite.make(suite.tasks[0])
    yield environment
    environment.close()


def test_a_suite_lists_distinct_tasks_with_kinds(suite: Suite) -> None:
    assert suite.name
    assert len({task.id for task in suite.tasks}) == len(suite.tasks) == 2
    assert all(task.kind for task in suite.tasks)


def test_the_first_observation_states_the_task(environment: Environment) -> None:
    room, _, task = environment.reset().partition("\n\n")
    assert room.startswith("You are in ")
    assert task.startswith("Your task is to: ")


def test_what_means_nothing_says_so_and_costs_nothing(environment: Environment) -> None:
    environment.reset()
    before = environment.step("look")
    result = environment.step("juggle the moon")
    assert (result.observation, result.valid) == ("Nothing happens.", False)
    assert (result.reward, result.terminated) == (0.0, False)
    assert environment.step("look") == before


def test_spaces_around_an_action_do_not_matter(environment: Environment) -> None:
    environment.reset()
    assert environment.step("  look\n").valid


def test_the_same_actions_lead_to_the_same_observations(suite: Suite) -> None:
    branches = [suite.make(suite.tasks[1]) for _ in range(2)]
    lines = [(branch.reset(), branch.step("look"), branch.step("go left")) for branch in branches]
    assert lines[0] == lines[1]
    for branch in branches:
        branch.close()


def test_episodes_run_side_by_side(suite: Suite) -> None:
    first, second = (suite.make(task) for task in suite.tasks)
    first_room, second_room = first.reset(), second.reset()
    assert first_room != second_room
    assert first.step("look").valid
    assert second.step("look").valid
    first.close()
    assert second.step("look").valid
    second.close()


def test_a_step_before_reset_fails(environment: Environment) -> None:
    with pytest.raises(EnvironmentFailureError, match="reset"):
        environment.step("look")


def test_closing_twice_is_safe(environment: Environment) -> None:
    environment.reset()
    environment.close()
    environment.close()
