"""Environments: tasks, episodes, and the bundle by which jobs know an environment.

A new environment is one folder below `training/environments` with an `EnvironmentBundle`, and one
line in `training/environments/registry.py`. One that lies elsewhere needs no line: jobs find it by
its import path (`name = "package.module:BUNDLE"`).
"""

import reprlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from random import Random
from typing import Annotated, Generic, Literal, Protocol, Self, SupportsFloat, TypeVar, runtime_checkable

from pydantic import Field

from qguide.qnet.errors import EnvironmentFailureError
from qguide.qnet.types import BatchPolicy, History, TaskMarker, ToolCall
from qguide.training.options import JobOptions
from qguide.training.trajectory import REACT, Action, ChatFormat


@dataclass(frozen=True, slots=True)
class Task:
    """One episode's starting point.

    Attributes:
        id: stable across machines, for example the game's path below its root.
        kind: the goal type, for example `pick_heat_then_place_in_recep`.
        source: the environment's own reference to it (a path, a seed), opaque to everyone else.
    """

    id: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """Effect of one action.

    Attributes:
        reward: outcome reward if the episode ends here, in [0, 1]. An environment without partial
            credit gives 0 until the task is solved.
        terminated: the task is over, won or lost for good.
        valid: False if the environment did not understand the action. The agent never sees this.
        truncated: the environment's own limit ended the episode, and the task is not over.
    """

    observation: str
    reward: float
    terminated: bool
    valid: bool = True
    truncated: bool = False

    @property
    def ended(self) -> bool:
        """True if the episode goes no further."""
        return self.terminated or self.truncated


class Environment(Protocol):
    """A single-use episode. A branch is a new environment with the same actions replayed."""

    def reset(self) -> str:
        """Start the episode and return the first observation, which states the task."""
        ...

    def step(self, action: str) -> StepResult:
        """Take one bare action ("go to desk 1").

        Raises:
            EnvironmentFailureError: the engine failed or the episode is over.
        """
        ...

    def close(self) -> None:
        """Release the engine's resources; safe to call twice."""
        ...


@runtime_checkable
class ToolEnvironment(Environment, Protocol):
    """An episode in which an agent calls tools; `step` takes the text of a reply without a call."""

    def call(self, call: ToolCall) -> StepResult:
        """Call one tool. Its observation is the tool's result.

        An unknown tool or arguments that do not fit are answered by a result that is not `valid`.

        Raises:
            EnvironmentFailureError: the engine failed or the episode is over.
        """
        ...


@runtime_checkable
class SnapshotEnvironment(Environment, Protocol):
    """An episode whose state can be kept and taken up again."""

    def snapshot(self) -> object:
        """The present state, which stays valid when the episode goes on or is closed."""
        ...

    def restore(self, snapshot: object) -> None:
        """Go on from a state of the same task, which another episode may have kept.

        It is called on an episode that was just reset.
        """
        ...


def reward_of(value: object) -> float:
    """A reward that somebody's code or server gave, as a finite number."""
    # Floats first: to look for the methods of a protocol takes many times as long.
    if isinstance(value, float | SupportsFloat) and not isinstance(value, str | bytes):
        with suppress(TypeError, ValueError, OverflowError):
            if isfinite(reward := float(value)):
                return reward
    shown = f"a number of {value.bit_length()} bits" if isinstance(value, int) else reprlib.repr(value)
    raise EnvironmentFailureError(f"a reward is {shown}; give a finite number")


def flag_of(value: object, name: str) -> bool:
    """A flag that somebody's code or server gave; one that is missing (None) is false.

    Raises:
        EnvironmentFailureError: it is neither true nor false. A text such as "false" would count
            as true.
    """
    if value is None:
        return False
    if isinstance(value, bool):
        return value
    import numpy as np  # here, because every command imports this module

    if isinstance(value, np.bool_):
        return bool(value)
    raise EnvironmentFailureError(f"{name} is {reprlib.repr(value)}; give true or false")


def take(environment: Environment, action: Action) -> StepResult:
    """Take a bare action or call a tool."""
    result = _answer_to(environment, action)
    reward = reward_of(result.reward)
    return result if result.reward is reward else replace(result, reward=reward)


def _answer_to(environment: Environment, action: Action) -> StepResult:
    if isinstance(action, str):
        return environment.step(action)
    if not isinstance(environment, ToolEnvironment):
        raise EnvironmentFailureError(
            f"{type(environment).__name__} cannot be asked for the tool {action.name!r}, because "
            "it has no method `call`; add one, or remove the tools from its chat format"
        )
    return environment.call(action)


class Suite(Protocol):
    """A list of tasks and the engine that plays them."""

    name: str
    tasks: Sequence[Task]

    def make(self, task: Task) -> Environment:
        """A fresh, single-use episode of `task`."""
        ...

    def close(self) -> None:
        """Stop worker processes; safe to call twice."""
        ...


@runtime_checkable
class GoldSuite(Suite, Protocol):
    """A suite that knows solutions of its tasks, from more than an agent can see."""

    def gold_replies(self, task: Task) -> Sequence[str]:
        """Replies that solve `task`, from its first observation on.

        It may take as long as a step: jobs call it where they call the environment.

        Raises:
            EnvironmentFailureError: the task has no solution on record.
        """
        ...


class Expert(Protocol):
    """The expert of one episode; it sees only what an agent sees."""

    def reply(self, observation: str) -> str:
        """The next reply."""
        ...

    def deviate(self, rng: Random) -> str:
        """A mistake to make instead of the last reply."""
        ...

    def follow(self, reply: str) -> None:
        """Take note that the agent gave this reply instead of the expert's last one."""
        ...

    def copy(self) -> Self:
        """An independent copy in the present state."""
        ...


class ExpertBuilder(Protocol):
    """Makes a fresh expert for each episode."""

    def __call__(self, *, forgetful: bool = False) -> Expert:
        """An expert at the start of an episode.

        Args:
            forgetful: when it follows an agent, the expert forgets everything that the agent
                overlooked, so that it needs as many steps from there as the agent would.
        """
        ...


class GameWriter(Protocol):
    """Writes generated games as files (`qguide generate`)."""

    def __call__(self, output: Path, *, count: int, first_seed: int) -> Mapping[str, object]:
        """Write `count` games below `output` and return the figures to show."""
        ...


Branching = Literal["replay", "snapshot", "none"]
"""Beginning of a branch: the same actions in a fresh episode, or a snapshot. There is none if
neither leads to the same state."""

Slice = Annotated[str, Field(pattern=r"^\d*:\d*$")]


class EnvironmentConfig(JobOptions):
    """The `[environment]` table of a job; each environment adds its own fields.

    Attributes:
        name: name in the registry, or an import path ("package.module:BUNDLE").
        task_ids: file with one task id per line; only these tasks are played.
        shuffle_seed: seed that shuffles the tasks before `slice` is cut; None sorts them by id.
        slice: "first:end" of the tasks, counted from 0.
        limit: maximum number of tasks, spread evenly over the slice. If the tasks are sorted by
            id, they are spread over the goal types too.
    """

    name: str
    task_ids: Path | None = None
    shuffle_seed: int | None = None
    slice: Slice = ":"
    limit: int | None = Field(default=None, ge=1)

    @property
    def threads(self) -> int:
        """Number of environment calls that run in parallel; 0 if steps take microseconds."""
        return 0


class NumberedConfig(EnvironmentConfig):
    """The `[environment]` table of tasks that are generated where no file has them.

    Attributes:
        first_seed: number, and seed, of the first generated task.
        count: number of generated tasks.
    """

    first_seed: int = Field(default=0, ge=0)
    count: int = Field(default=100, ge=1)


def full_reward(reward: float, terminated: bool) -> bool:
    """Success criterion without partial credit: the task is over and its reward is 1."""
    return terminated and reward >= 1.0


C = TypeVar("C", bound=EnvironmentConfig)


@dataclass(frozen=True, slots=True)
class EnvironmentBundle(Generic[C]):
    """Everything that jobs and commands know about one environment.

    Attributes:
        name: name in the registry, in job files and in rows.
        config: type of its `[environment]` table.
        build_suite: builds the tasks and the engine that a validated table describes. It may raise
            `ConfigError` if there are no such tasks.
        chat: its system message, and how a reply is parsed into an action.
        is_success: decides from (outcome reward, terminated) whether an episode is a success.
        task_markers: texts by which the first observation introduces the task. Policies that are
            trained on the environment keep them, for a server that paraphrases tasks.
        void_observation: answer to an action that the environment does not understand, or "" if
            there is no fixed one. Agents see it too; the baseline `no-repeat` relies on it.
        build_expert: makes a fresh expert for each episode; None if there is no expert.
        build_expert_policy: makes a policy of the expert and its mistakes, named "expert" in job
            files; None if there is no expert.
        write_games: writes games for `qguide generate`; None if games cannot be generated.
        packages: distributions on which results depend; evaluations record their versions.
        actions: lists the actions, or whole replies, from which the policies "random" and "scripted"
            draw after a history; None reads the numbered choices of the last observation that has any.
        harmless: an action that is valid at the start of every task and changes nothing, for the
            checks of `qguide environment check`; None if there is none.
        branching: how branches begin; "auto" finds out by playing `probes` twice.
        probes: actions of that self-check; empty plays `harmless` and an action that means nothing.
        configure: the bundle as a validated table changes it; None if it does not.
    """

    name: str
    config: type[C]
    build_suite: Callable[[C], Suite]
    chat: ChatFormat = REACT
    is_success: Callable[[float, bool], bool] = full_reward
    task_markers: tuple[TaskMarker, ...] = ()
    void_observation: str = ""
    build_expert: ExpertBuilder | None = None
    build_expert_policy: Callable[[], BatchPolicy] | None = None
    write_games: GameWriter | None = None
    packages: tuple[str, ...] = ()
    actions: Callable[[History], Sequence[Action]] | None = None
    harmless: Action | None = None
    branching: Branching | Literal["auto"] = "replay"
    probes: tuple[Action, ...] = ()
    configure: "Callable[[C], EnvironmentBundle[C]] | None" = None
