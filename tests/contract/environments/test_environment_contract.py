"""Contract of every environment, its suite and its bundle, on any engine.

The checks are those of `qguide environment check`; the unit tests of the contract break most of its
rules on purpose.
"""

from collections.abc import Iterator

import pytest

from qguide.qnet.contract import Check, NotCheckedError
from qguide.training.environment import EnvironmentConfig
from qguide.training.environments.contract import CHECKS, Subject
from qguide.training.environments.registry import ENVIRONMENTS, build_selected_suite, find_environment
from tests.contract.environments.subjects import SUBJECTS

# Real games in the engine: generated ones are played there, too, and real ones in Python.
SLOW = ("alfworld-textworld",)


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in SUBJECTS]
)
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Two tasks of each implementation in turn."""
    found = SUBJECTS[request.param]
    config = found if isinstance(found, EnvironmentConfig) else found(request)
    suite = build_selected_suite(config)
    yield Subject(config, suite, suite.environment.harmless)
    suite.close()


def test_every_registered_environment_is_under_the_contract() -> None:
    named = {config.name for config in SUBJECTS.values() if isinstance(config, EnvironmentConfig)}
    assert named | SUBJECTS.keys() >= ENVIRONMENTS.keys()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.rule)
def test_an_environment_keeps_to_the_contract(check: Check[Subject], subject: Subject) -> None:
    try:
        check.run(subject)
    except NotCheckedError as reason:
        pytest.skip(str(reason))


def test_a_bundle_is_what_its_name_finds(subject: Subject) -> None:
    assert find_environment(subject.bundle.name) is subject.bundle


def test_the_contract_is_checked_by_an_action_that_each_environment_names(subject: Subject) -> None:
    assert subject.harmless is not None
    assert len(subject.tasks) == 2
