"""Contract of every environment, as checks over its first tasks (`qguide environment check`).

A check raises `ContractError` for what it finds. The contract tests of this repository run the same
checks over the environments that ship.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from qguide.qnet.contract import Check, ContractError, Finding, NotCheckedError, finding_of, require, told_once
from qguide.qnet.errors import EnvironmentFailureError
from qguide.training.environment import (
    Environment,
    EnvironmentBundle,
    EnvironmentConfig,
    GoldSuite,
    StepResult,
    Task,
    take,
)
from qguide.training.environments.branches import MEANINGLESS, MEANINGLESS_CALL, difference_of_replays
from qguide.training.environments.registry import SelectedSuite, environment_config
from qguide.training.trajectory import Action, text_reply

MOST_EXPERT_STEPS = 60
MOST_LISTED = 8
"""Listed actions that are replayed."""
PAIRS = 5
"""Replays of a listed action: chance may answer it in the same way twice."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An environment under the contract.

    Attributes:
        harmless: an action that is valid at the start of every task and changes nothing; None if
            there is none, or none is known.
    """

    config: EnvironmentConfig
    suite: SelectedSuite
    harmless: Action | None = None

    @property
    def bundle(self) -> "EnvironmentBundle[EnvironmentConfig]":
        """The environment's bundle."""
        return self.suite.environment

    @property
    def meaningless(self) -> Action:
        """An action that no environment understands."""
        return MEANINGLESS_CALL if self.bundle.chat.tools else MEANINGLESS

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks that are played."""
        return tuple(self.suite.tasks[:2])

    def require_harmless(self) -> Action:
        """The harmless action."""
        if self.harmless is None:
            raise NotCheckedError("no action is known that is valid at the start; name one by --harmless")
        return self.harmless

    def listed_at_start(self) -> tuple[Action, ...]:
        """The first actions that the bundle lists at the start of the last task; none if it lists none."""
        if self.bundle.actions is None:
            return ()
        with self.episode(len(self.tasks) - 1) as environment:
            history = self.bundle.chat.history(environment.reset(), ())
        listed = self.bundle.actions(history)[:MOST_LISTED]
        return tuple(self.bundle.chat.parse_action(a) or a if isinstance(a, str) else a for a in listed)

    @contextmanager
    def episode(self, number: int = 0) -> Iterator[Environment]:
        """A fresh episode of one of the tasks, closed at the end."""
        environment = self.suite.make(self.tasks[number % len(self.tasks)])
        try:
            yield environment
        finally:
            environment.close()


def _table_comes_back(subject: Subject) -> None:
    again = environment_config(subject.config.model_dump(mode="json"))
    require(again == subject.config, f"{subject.config} comes back as {again}")


def _tasks_are_distinct(subject: Subject) -> None:
    ids = [task.id for task in subject.suite.tasks]
    require(bool(subject.suite.name), "the suite has no name")
    require(len(set(ids)) == len(ids), f"{len(ids)} tasks have {len(set(ids))} different ids")
    kinds = [task.id for task in subject.tasks if not task.kind]
    require(not kinds, f"the tasks {kinds} have no kind")


def _episodes_start(subject: Subject) -> None:
    for number in range(len(subject.tasks)):
        with subject.episode(number) as environment:
            environment.reset()


def _start_is_the_tasks_own(subject: Subject) -> None:
    starts = []
    for number in (0, 1, 0, 1):
        with subject.episode(number) as environment:
            starts.append(environment.reset())
    require(all(start.strip() for start in starts), "the first observation is empty")
    require(starts[:2] == starts[2:], f"the same task starts by {starts[0]!r} and {starts[2]!r}")
    if len(subject.tasks) < 2:
        raise NotCheckedError("there is only one task")
    require(starts[0] != starts[1], f"two tasks start alike, by {starts[0]!r}")


def _harmless_is_valid(subject: Subject) -> None:
    action = subject.require_harmless()
    for number in range(len(subject.tasks)):
        with subject.episode(number) as environment:
            environment.reset()
            result = take(environment, action)
            require(result.valid, f"{action!r} is answered by {result.observation!r}, not valid")


def _step_before_reset_fails(subject: Subject) -> None:
    action = subject.harmless if subject.harmless is not None else subject.meaningless
    with subject.episode() as environment:
        try:
            result = take(environment, action)
        except EnvironmentFailureError as error:
            require("reset" in str(error), f"the error does not name reset: {error}")
        else:
            raise ContractError(f"a step before reset is answered by {result.observation!r}")


def _meaningless_changes_nothing(subject: Subject) -> None:
    with subject.episode() as environment:
        environment.reset()
        before = None if subject.harmless is None else take(environment, subject.harmless)
        result = take(environment, subject.meaningless)
        require(bool(result.observation.strip()), "it is answered by nothing")
        require(not result.valid, f"{result.observation!r} is the answer of a valid action")
        require(not result.ended, "it ends the episode")
        if before is None or subject.harmless is None:
            return
        require(result.reward == before.reward, f"it changes the reward from {before.reward} to {result.reward}")
        after = take(environment, subject.harmless)
        require(after == before, f"the next answer is {after} instead of {before}")


def _beginning_is_no_success(subject: Subject) -> None:
    with subject.episode() as environment:
        environment.reset()
        result = take(environment, subject.require_harmless())
        _require_reward(result)
        won = subject.bundle.is_success(result.reward, result.terminated)
        require(not won, f"an episode succeeds at once, by a reward of {result.reward}")


def _require_reward(result: StepResult) -> None:
    require(0 <= result.reward <= 1, f"a reward is {result.reward}")


def _expert_succeeds(subject: Subject) -> None:
    bundle = subject.bundle
    if bundle.build_expert is None:
        raise NotCheckedError("the environment has no expert")
    for number, task in enumerate(subject.tasks):
        expert = bundle.build_expert()
        with subject.episode(number) as environment:
            observation, result = environment.reset(), StepResult("", 0.0, terminated=False)
            for _ in range(MOST_EXPERT_STEPS):
                [action] = bundle.chat.actions_of(text_reply(expert.reply(observation)))
                result = take(environment, action)
                _require_reward(result)
                observation = result.observation
                if result.ended:
                    break
        won = bundle.is_success(result.reward, result.terminated)
        require(won, f"the expert ends {task.id} with a reward of {result.reward}")


def _gold_succeeds(subject: Subject) -> None:
    suite, bundle = subject.suite.suite, subject.bundle
    if not isinstance(suite, GoldSuite):
        raise NotCheckedError("the suite has no solutions on record")
    for number, task in enumerate(subject.tasks):
        with subject.episode(number) as environment:
            environment.reset()
            result = StepResult("", 0.0, terminated=False)
            for reply in suite.gold_replies(task):
                for action in bundle.chat.actions_of(text_reply(reply)):
                    result = take(environment, action)
                    require(result.valid, f"{action!r} is not valid in {task.id}")
                if result.ended:
                    break
        won = bundle.is_success(result.reward, result.terminated)
        require(won, f"the solution of {task.id} ends with a reward of {result.reward}")


def _spaces_do_not_matter(subject: Subject) -> None:
    action = subject.require_harmless()
    if not isinstance(action, str):
        raise NotCheckedError("the actions are tool calls")
    with subject.episode() as environment:
        environment.reset()
        result = environment.step(f"  {action}\n")
        require(result.valid, f"{action!r} with spaces around it is answered by {result}")


def _replays_are_equal(subject: Subject) -> None:
    nothing = subject.meaningless
    known = subject.bundle.probes
    if not known and subject.harmless is not None:
        known = (subject.harmless, nothing, subject.harmless)
    if subject.bundle.branching in ("snapshot", "none"):
        raise NotCheckedError(f"branching is {subject.bundle.branching!r}, so nothing is replayed")
    make = partial(subject.suite.make, subject.tasks[-1])
    listed = subject.listed_at_start()
    for actions in (known or (nothing, nothing), *((action,) for action in listed for _ in range(PAIRS))):
        difference = difference_of_replays(make, actions)
        require(not difference, f"{difference}, by {actions}")
    if not known and not listed:  # what refuses every action of the check may throw dice at all others
        raise NotCheckedError("no action is known but one that means nothing; name probes")


def _episodes_are_independent(subject: Subject) -> None:
    action = subject.require_harmless()
    with subject.episode(0) as first, subject.episode(1) as second:
        starts = first.reset(), second.reset()
        if len(subject.tasks) > 1:
            require(starts[0] != starts[1], "two episodes that run at once start alike")
        require(take(first, action).valid, "the first of two episodes does not go on")
        require(take(second, action).valid, "the second of two episodes does not go on")
        first.close()
        require(take(second, action).valid, "closing one episode ends the other")


def _closing_twice_is_safe(subject: Subject) -> None:
    with subject.episode() as environment:
        environment.reset()
        environment.close()
        environment.close()


_HARMLESS = "the harmless action is valid at the start of every task"

CHECKS = (
    Check(
        "the table is written as it is read", _table_comes_back, "let every field of the config be one that JSON holds"
    ),
    Check(
        "tasks have distinct ids, and a kind",
        _tasks_are_distinct,
        "derive ids from what makes the tasks different, such as a file's path or a seed",
    ),
    Check(
        "an episode of each task starts",
        _episodes_start,
        "correct what reset() raises, or start the server that it asks",
    ),
    Check(
        "the first observation is the task's own, and the same each time",
        _start_is_the_tasks_own,
        "state the task in the first observation, and derive all chance from the task",
    ),
    Check(_HARMLESS, _harmless_is_valid, "name another by --harmless, or as the bundle's `harmless`"),
    Check("a step before reset fails", _step_before_reset_fails, 'raise EnvironmentFailureError("…: reset first")'),
    Check(
        "an action that means nothing is answered, is not valid and changes nothing",
        _meaningless_changes_nothing,
        "answer it by a text, with valid = False, and leave the state and the reward alone; if it is the harmless "
        "action that changes them, name another by --harmless",
    ),
    Check(
        "a beginning is no success, and rewards are in [0, 1]",
        _beginning_is_no_success,
        "scale the reward to [0, 1] (reward_range), or set the criterion of success",
    ),
    Check("the expert's replies succeed", _expert_succeeds, "correct the expert, or leave build_expert out"),
    Check("solutions on record succeed", _gold_succeeds, "correct gold_replies, or leave it out"),
    Check("spaces around an action do not matter", _spaces_do_not_matter, "strip the action"),
    Check(
        "the same actions lead to the same observations",
        _replays_are_equal,
        "derive all chance from the task; without that, offer snapshot() and restore(), or explore "
        'whole episodes only (branching = "none")',
    ),
    Check("closing twice is safe", _closing_twice_is_safe, "let close() do nothing the second time"),
    Check(
        "episodes run side by side",
        _episodes_are_independent,
        "keep an episode's state in the episode, not in the module or the suite",
    ),
)


def check_environment(subject: Subject) -> list[Finding]:
    """Run every check; whatever an environment raises fails the check.

    One cause is one failure: what fails in the same way again, and what needs a harmless action
    that turned out to be none, is not checked.
    """
    findings: list[Finding] = []
    for check in CHECKS:
        finding = told_once(finding_of(check, subject), findings)
        if finding.outcome == "failed" and check.rule == _HARMLESS:
            subject = replace(subject, harmless=None)
        findings.append(finding)
    return findings
