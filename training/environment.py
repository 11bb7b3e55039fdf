"""Environments: tasks, episodes, and the bundle by which the jobs know an environment.

A new environment is one folder below `training/environments` with an `EnvironmentBundle`, and one
line in `training/environments/registry.py`. One that lies elsewhere needs no line: jobs find it by
its import path (`name = "package.module:BUNDLE"`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Generic, Literal, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from qnet.types import BatchPolicy, History, TaskMarker
from training.trajectory import REACT, ChatFormat


@dataclass(frozen=True, slots=True)
class Task:
    """One episode's starting point.

    Attributes:
        id: stable across machines, for example the game's path below its root.
        kind: the goal type, for example `pick_heat_then_place_in_recep`.
        source: where the environment finds it (a path, a seed), opaque to everyone else.
    """

    id: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """Effect of one action.

    Attributes:
        observation: what the agent reads next.
        reward: outcome reward of an episode that ends here, in [0, 1]. An environment that gives
            no partial credit says 0 until the task is solved.
        terminated: the task is over (won, or lost for good).
        valid: False where the action meant nothing here; for statistics only, the agent never
            sees it.
    """

    observation: str
    reward: float
    terminated: bool
    valid: bool = True


class Environment(Protocol):
    """A single-use episode. A branch is a new environment with the same actions replayed."""

    def reset(self) -> str:
        """The first observation: the task instruction and what is seen."""
        ...

    def step(self, action: str) -> StepResult:
        """Take one bare action ("go to desk 1").

        Raises:
            EnvironmentFailureError: the engine failed or the episode is over.
        """
        ...

    def close(self) -> None:
        """Give the engine's resources back; safe to call twice."""
        ...


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


class Expert(Protocol):
    """One episode's expert: it sees what an agent sees."""

    def reply(self, observation: str) -> str:
        """The next reply."""
        ...

    def deviate(self, rng: Random) -> str:
        """A mistake in place of the last reply."""
        ...

    def follow(self, reply: str) -> None:
        """Hear that another reply was given than the last one."""
        ...

    def copy(self) -> Self:
        """One that goes its own way from here."""
        ...


class ExpertBuilder(Protocol):
    """Makes a fresh expert for each episode."""

    def __call__(self, *, forgetful: bool = False) -> Expert:
        """An expert that knows nothing yet.

        Args:
            forgetful: it forgets what an agent that it follows has overlooked, so that the way
                on from there costs it what it would cost that agent.
        """
        ...


class GameWriter(Protocol):
    """Writes generated games as files (`qguide generate`)."""

    def __call__(self, output: Path, *, count: int, first_seed: int) -> Mapping[str, object]:
        """Write `count` games below `output`; returns the figures to show."""
        ...


class EngineComparison(Protocol):
    """Plays two engines side by side (`qguide parity`)."""

    def __call__(self, games: Path, *, episodes: int, seed: int, max_steps: int) -> bool:
        """Print the differences; True if the engines agree."""
        ...


@dataclass(frozen=True, slots=True)
class ReadPair:
    """One reply in two histories, one of which makes it void.

    Attributes:
        present: the state in which the last observation holds what the reply acts on.
        absent: the same but for that.
        reply: acts on something that it names.
        played: which of the two was really reached.
        rival: another reply of the state, which goes elsewhere; None without one.
    """

    present: History
    absent: History
    reply: str
    played: Literal["present", "absent"]
    rival: str | None = None


class ReadPairMaker(Protocol):
    """Makes counterfactual states, for a check that a Q model reads what it scores."""

    def __call__(self, history: History, replies: Sequence[str], rng: Random) -> Sequence[ReadPair]:
        """The pairs of a state; none where no reply names anything in its last observation.

        Args:
            history: the state, as it was played.
            replies: drawn there.
            rng: draws what takes the place of what is taken away.
        """
        ...


Slice = Annotated[str, Field(pattern=r"^\d*:\d*$")]


class EnvironmentConfig(BaseModel):
    """The `[environment]` table of a job; each environment adds its own fields.

    Attributes:
        name: in the registry, or an import path ("package.module:BUNDLE").
        task_ids: a file of ids, one per line; only these are played.
        shuffle_seed: shuffles the tasks before `slice` cuts; None keeps them sorted by id.
        slice: "first:end" of the tasks, counted from 0.
        limit: at most so many of what the slice leaves, spread evenly over it: over tasks
            sorted by id that is over the goal types too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    task_ids: Path | None = None
    shuffle_seed: int | None = None
    slice: Slice = ":"
    limit: int | None = Field(default=None, ge=1)

    @property
    def threads(self) -> int:
        """Environment calls that run beside each other; 0 for steps that take microseconds."""
        return 0


def full_reward(reward: float, terminated: bool) -> bool:
    """Success where nothing less than the whole task counts: it is over, with a reward of 1."""
    return terminated and reward >= 1.0


C = TypeVar("C", bound=EnvironmentConfig)


@dataclass(frozen=True, slots=True)
class EnvironmentBundle(Generic[C]):
    """Everything that jobs and commands know of one environment.

    Attributes:
        name: what the registry, job files and rows call it.
        config: its `[environment]` table.
        build_suite: the tasks that a checked table describes, and their engine. May raise
            `ConfigError`: there are no such tasks.
        chat: its system message, and how a reply is parsed into an action.
        is_success: (outcome reward, terminated) to the verdict that success rates count.
        task_markers: how the first observation states the task; policies that are trained on it
            keep them, for a server that paraphrases tasks.
        void_observation: answer to an action that means nothing, "" where there is no such text;
            an agent sees it too, and the baseline `no-repeat` goes by it.
        build_expert: makes a fresh expert for each episode; None where there is none.
        build_expert_policy: the expert and its mistakes as a policy, named "expert" in job files.
        read_pairs: counterfactual states, for `qguide choice-regret`; None where there are none.
        write_games: for `qguide generate`; None where games cannot be generated.
        compare_engines: for `qguide parity`; None where there is one engine.
        packages: distributions that results depend on; evaluations record their versions.
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
    read_pairs: ReadPairMaker | None = None
    write_games: GameWriter | None = None
    compare_engines: EngineComparison | None = None
    packages: tuple[str, ...] = ()
