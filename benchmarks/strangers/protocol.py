"""Protocol of the measurement: record, learn, and play tasks that were kept aside.

A recording consists of unguided episodes of the recorded tasks, and a smaller one is the beginning
of a larger one. In rounds, a third is recorded, then the learner's agent plays on, with a random
candidate in 30 % of its steps, and learns from everything so far.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from random import Random
from time import process_time
from typing import Any, Protocol

from benchmarks.strangers.catalogue import Stranger
from benchmarks.strangers.choosers import Chooser, Seat, play
from qguide.qnet.types import Scorer
from qguide.training.data.trajectories import Trajectory
from qguide.training.environment import Task
from qguide.training.environments.registry import SelectedSuite
from qguide.training.jobs.collect import trajectory_of
from qguide.training.rollouts.driver import run_together
from qguide.training.rollouts.episode import Episode

ROUNDS = 3
BASELINES: tuple[Chooser, ...] = ("sample", "greedy", "random", "votes")


class Learner(Protocol):
    """Learns Q from recorded episodes.

    Its scorer may bring a `tau` for the posterior, and a `licence` that is `granted` or not.
    """

    name: str

    def fit(self, rows: Sequence[Trajectory]) -> Scorer:
        """The Q model of these episodes."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """Outcomes of one chooser on the new tasks.

    Attributes:
        recording: number of the recording; None for what does not learn.
        episodes: recorded episodes that were learned from; 0 for what does not learn.
        rounds: 1, or the number of rounds in which they were recorded.
        task_rewards: mean reward of each task.
        successes: share of the episodes that succeeded by the environment's criterion.
        steps: mean number of steps.
        played: number of episodes.
        fit_s, play_s: CPU seconds of learning and of playing.
        tau: of the scorer's posterior.
        licensed: the learner says that it has learned; None if it says nothing.
    """

    environment: str
    world: int
    chooser: Chooser
    recording: int | None
    episodes: int
    rounds: int
    task_rewards: dict[str, float]
    successes: float
    steps: float
    played: int
    fit_s: float
    play_s: float
    tau: float | None = None
    licensed: bool | None = None

    @property
    def reward(self) -> float:
        """Mean over tasks."""
        return sum(self.task_rewards.values()) / len(self.task_rewards)

    def row(self) -> dict[str, Any]:
        """The result as JSON."""
        return {**asdict(self), "reward": self.reward}


@dataclass(frozen=True, slots=True)
class Fitted:
    """A scorer and the recording behind it; without arguments, a chooser that does not learn."""

    scorer: Scorer | None = None
    recording: int | None = None
    episodes: int = 0
    rounds: int = 1
    fit_s: float = 0.0

    @property
    def tau(self) -> float | None:
        """Temperature of its posterior; None if it brings none."""
        tau: float | None = getattr(self.scorer, "tau", None)
        return tau

    @property
    def greedy_weight(self) -> float:
        """Weight of the greedy reply in its prior; 0 if it brings none."""
        return float(getattr(self.scorer, "greedy_weight", 0.0))

    @property
    def licensed(self) -> bool | None:
        """Its own verdict; None if it brings none."""
        licence = getattr(self.scorer, "licence", None)
        return None if licence is None else bool(licence.granted)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One environment, and how much of it is played.

    Attributes:
        new_episodes: least number of episodes of new tasks that each chooser plays.
        oracle_episodes: the same for the oracle, which costs a hundred times as much; 0 leaves it out.
        continuations: of each candidate that the oracle tries.
        told: recordings tell the agent's draws; see the chooser of that name.
    """

    stranger: Stranger
    world: int = 0
    new_episodes: int = 300
    oracle_episodes: int = 96
    continuations: int = 10
    told: bool = False

    def baselines(self) -> Iterator[Result]:
        """The choosers that do not learn."""
        for chooser in BASELINES:
            yield self.play_new(chooser, self.new_episodes)
        if self.oracle_episodes:
            yield self.play_new("oracle", self.oracle_episodes)

    def learned(self, learner: Learner, recording: int, sizes: Sequence[int]) -> Iterator[Result]:
        """The learner after each number of episodes of one recording."""
        rows = self.record(recording, max(sizes))
        for size in sizes:
            yield from self._fitted(learner, rows[:size], recording, rounds=1)

    def in_rounds(self, learner: Learner, recording: int, size: int) -> Iterator[Result]:
        """The learner after `ROUNDS` rounds, the later ones with its own guidance."""
        bounds = [size * number // ROUNDS for number in range(ROUNDS + 1)]
        rows = self.record(recording, bounds[1])
        for first, end in pairwise(bounds[1:]):
            scorer = learner.fit(rows)
            rows += self.record(recording, end, first=first, scorer=scorer)
        yield from self._fitted(learner, rows, recording, rounds=ROUNDS)

    def record(self, recording: int, end: int, *, first: int = 0, scorer: Scorer | None = None) -> list[Trajectory]:
        """The episodes `first` to `end` of a recording.

        Args:
            recording: its number.
            end: number of the first episode that is not recorded.
            first: number of the first episode.
            scorer: guides the episodes, and leaves some steps to chance; None guides none.
        """
        suite = self.stranger.suite(new=False, world=self.world)
        tasks = list(suite.tasks)
        Random(f"recording {recording}").shuffle(tasks)
        seats = [
            self._seat(suite, tasks[number % len(tasks)], "recording", recording, number)
            for number in range(first, end)
        ]
        own: Chooser = "told" if self.told else "sample"
        return _rows(suite, seats, self._play(seats, "explore" if scorer else own, Fitted(scorer)))

    def _fitted(self, learner: Learner, rows: Sequence[Trajectory], recording: int, *, rounds: int) -> Iterator[Result]:
        start = process_time()
        scorer = learner.fit(rows)
        fitted = Fitted(scorer, recording, len(rows), rounds, process_time() - start)
        yield self.play_new("q", self.new_episodes, fitted)
        if fitted.tau is not None:
            yield self.play_new("posterior", self.new_episodes, fitted)

    def play_new(self, chooser: Chooser, least: int, fitted: Fitted | None = None) -> Result:
        """Play the new tasks, all of them equally often."""
        fitted = fitted or Fitted()
        suite, seats = self._new(least)
        times = len(seats) // len(suite.tasks)
        start = process_time()
        episodes = self._play(seats, chooser, fitted)
        spent = process_time() - start
        rewards = [episode.reward for episode in episodes]
        won = [suite.environment.is_success(e.reward, e.terminated) for e in episodes]
        return Result(
            environment=self.stranger.name,
            world=self.world,
            chooser=chooser,
            recording=fitted.recording,
            episodes=fitted.episodes,
            rounds=fitted.rounds,
            task_rewards={
                task.id: sum(rewards[n * times : (n + 1) * times]) / times for n, task in enumerate(suite.tasks)
            },
            successes=sum(won) / len(won),
            steps=sum(len(episode.steps) for episode in episodes) / len(episodes),
            played=len(episodes),
            fit_s=fitted.fit_s,
            play_s=spent,
            tau=fitted.tau,
            licensed=fitted.licensed,
        )

    def record_new(self, chooser: Chooser, least: int, fitted: Fitted | None = None) -> list[Trajectory]:
        """The episodes of `play_new`."""
        suite, seats = self._new(least)
        return _rows(suite, seats, self._play(seats, chooser, fitted or Fitted()))

    def _new(self, least: int) -> tuple[SelectedSuite, list[Seat]]:
        suite = self.stranger.suite(new=True, world=self.world)
        times = range(-(-least // len(suite.tasks)))
        return suite, [self._seat(suite, task, "new", time) for task in suite.tasks for time in times]

    def _seat(self, suite: SelectedSuite, task: Task, *seed: object) -> Seat:
        stranger = self.stranger
        return Seat(suite, task, seed, stranger.max_steps, stranger.candidates)

    def _play(self, seats: Sequence[Seat], chooser: Chooser, fitted: Fitted) -> list[Episode]:
        tasks = [
            play(seat, chooser, tau=fitted.tau, greedy_weight=fitted.greedy_weight, continuations=self.continuations)
            for seat in seats
        ]
        policy = self.stranger.policy(self.world)
        return run_together(tasks, policy=policy, scorer=fitted.scorer)


def _rows(suite: SelectedSuite, seats: Sequence[Seat], episodes: Sequence[Episode]) -> list[Trajectory]:
    name = suite.environment.name
    return [trajectory_of(seat.task, name, one, source="mock") for seat, one in zip(seats, episodes, strict=True)]
