"""Contract of every environment, its suite and its bundle, on any engine."""

from collections.abc import Iterator

import pytest

from qnet.errors import EnvironmentFailureError
from tests.contract.environments.subjects import SUBJECTS, Subject
from training.environment import Environment, EnvironmentConfig, GoldSuite
from training.environments.registry import ENVIRONMENTS, environment_config, find_environment
from training.environments.task_selection import SelectedSuite, build_selected_suite


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    """Each implementation in turn."""
    return SUBJECTS[request.param]


@pytest.fixture(scope="module")
def config(subject: Subject, request: pytest.FixtureRequest) -> EnvironmentConfig:
    """Two of its tasks."""
    return subject.config_of(request)


@pytest.fixture(scope="module")
def suite(config: EnvironmentConfig) -> Iterator[SelectedSuite]:
    """Its suite."""
    suite = build_selected_suite(config)
    yield suite
    suite.close()


@pytest.fixture
def environment(suite: SelectedSuite) -> Iterator[Environment]:
    """An episode of the first task."""
    environment = suite.make(suite.tasks[0])
    yield environment
    environment.close()


def test_every_registered_environment_is_under_the_contract() -> None:
    assert {find_environment(name) for name in ENVIRONMENTS} == {
        s.bundle for s in SUBJECTS.values()
    }


def test_a_bundle_is_what_its_name_finds(subject: Subject) -> None:
    assert find_environment(subject.bundle.name) is subject.bundle


def test_a_table_is_written_as_it_was_read(config: EnvironmentConfig) -> None:
    assert environment_config(config.model_dump(mode="json")) == config


def test_a_suite_lists_distinct_tasks_with_kinds(suite: SelectedSuite) -> None:
    assert suite.name
    assert len({task.id for task in suite.tasks}) == len(suite.tasks) == 2
    assert all(task.kind for task in suite.tasks)


def test_the_first_observation_is_the_tasks_own(suite: SelectedSuite) -> None:
    starts = []
    for task in (*suite.tasks, *suite.tasks):
        environment = suite.make(task)
        starts.append(environment.reset())
        environment.close()
    assert all(start.strip() for start in starts)
    assert starts[0] != starts[1]
    assert starts[:2] == starts[2:]


def test_what_means_nothing_is_answered_and_changes_nothing(
    subject: Subject, environment: Environment
) -> None:
    environment.reset()
    before = environment.step(subject.harmless)
    result = environment.step(subject.meaningless)
    assert before.valid
    assert result.observation.strip()
    assert not result.valid
    assert (result.reward, result.terminated) == (before.reward, False)
    assert environment.step(subject.harmless) == before


def test_a_beginning_is_no_success(subject: Subject, environment: Environment) -> None:
    environment.reset()
    result = environment.step(subject.harmless)
    assert 0 <= result.reward < 1
    assert not subject.bundle.is_success(result.reward, result.terminated)


def test_an_experts_replies_succeed(subject: Subject, suite: SelectedSuite) -> None:
    if subject.bundle.build_expert is None:
        pytest.skip("this environment has no expert")
    for task in suite.tasks:
        environment, expert = suite.make(task), subject.bundle.build_expert()
        observation = environment.reset()
        for _ in range(60):
            reply = expert.reply(observation)
            result = environment.step(subject.bundle.chat.parse_action(reply))
            observation = result.observation
            if result.terminated:
                break
        assert 0 <= result.reward <= 1
        assert subject.bundle.is_success(result.reward, result.terminated)
        environment.close()


def test_gold_replies_succeed(subject: Subject, suite: SelectedSuite) -> None:
    if not isinstance(suite.suite, GoldSuite):
        pytest.skip("this environment has no solutions on record")
    for task in suite.tasks:
        environment = suite.make(task)
        environment.reset()
        for reply in suite.suite.gold_replies(task):
            result = environment.step(subject.bundle.chat.parse_action(reply))
            assert result.valid
        assert subject.bundle.is_success(result.reward, result.terminated)
        environment.close()


def test_spaces_around_an_action_do_not_matter(subject: Subject, environment: Environment) -> None:
    environment.reset()
    assert environment.step(f"  {subject.harmless}\n").valid


def test_the_same_actions_lead_to_the_same_observations(
    subject: Subject, suite: SelectedSuite
) -> None:
    actions = (subject.harmless, subject.meaningless, subject.harmless)
    branches = [suite.make(suite.tasks[1]) for _ in range(2)]
    lines = [(branch.reset(), *map(branch.step, actions)) for branch in branches]
    assert lines[0] == lines[1]
    for branch in branches:
        branch.close()


def test_episodes_run_side_by_side(subject: Subject, suite: SelectedSuite) -> None:
    first, second = (suite.make(task) for task in suite.tasks)
    assert first.reset() != second.reset()
    assert first.step(subject.harmless).valid
    assert second.step(subject.harmless).valid
    first.close()
    assert second.step(subject.harmless).valid
    second.close()


def test_a_step_before_reset_fails(subject: Subject, environment: Environment) -> None:
    with pytest.raises(EnvironmentFailureError, match="reset"):
        environment.step(subject.harmless)


def test_closing_twice_is_safe(environment: Environment) -> None:
    environment.reset()
    environment.close()
    environment.close()
