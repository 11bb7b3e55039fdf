"""Options, costs and results of the scale benchmark."""

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from benchmarks.measurement.options import BenchOptions, OutputFile, Words
from benchmarks.measurement.records import Machine

Scenario = Literal["hashed", "no cache", "a replica dies", "fewest episodes", "any replica"]
SCENARIOS: Final[dict[Scenario, str]] = {
    "hashed": "consistent hashing of X-Session-ID, as nginx does it",
    "no cache": "the same, but no replica keeps a prefix between two steps",
    "a replica dies": "the same as hashed; half-way the replica with the most episodes dies",
    "fewest episodes": "an episode goes to the replica that has the fewest, and stays there",
    "any replica": "each request goes to the next replica in turn",
}

MostTasks = Annotated[int, Field(ge=1, le=1_000_000)]
MostReplicas = Annotated[int, Field(ge=1, le=1_000)]
Seconds = Annotated[FiniteFloat, Field(ge=0)]


class ScaleBench(BenchOptions):
    """Options of `python -m benchmarks scale`.

    Attributes:
        output: JSON file; the plot is written beside it.
        costs: JSON file of `StepCosts`, or a result of this command; None measures the embedded
            models here.
        tasks: numbers of episodes.
        replicas: numbers of replicas.
        episodes_per_replica: episodes at the same time, for each replica.
        cache_tokens: tokens that a replica's prefix cache holds.
        seeds: number of simulations of each row, with other session ids and lengths of episodes.
        measured_episodes: episodes that are played to measure the costs.
        threads: number of torch threads while measuring.
        seed: of the first simulation.
        command: the command line.
    """

    output: OutputFile
    costs: Path | None = None
    tasks: Annotated[tuple[MostTasks, ...], Words] = Field((100, 1_000, 10_000), min_length=1)
    replicas: Annotated[tuple[MostReplicas, ...], Words] = Field((1, 3, 10, 30, 100), min_length=1)
    episodes_per_replica: int = Field(default=16, ge=1)
    cache_tokens: int = Field(default=200_000, ge=0)
    seeds: int = Field(default=3, ge=1)
    measured_episodes: int = Field(default=12, ge=1)
    threads: int = Field(default=1, ge=1)
    seed: int = 0
    command: str = ""

    @property
    def plot(self) -> Path:
        """The plot beside the output."""
        return self.output.with_suffix(".png")


class StepCosts(BaseModel):
    """Costs of one step on one replica, which holds the policy and the Q model.

    A step takes draw_s + score_s + tokens_read * (draw_read_s + score_read_s) of the replica, where
    `tokens_read` is the part of the history that its cache lacks. For a server that batches, the
    seconds are those of a full load: 1 / (steps per second).

    Attributes:
        source: what was measured, and where.
        draw_s: drawing all candidates of a step after a history that was read already.
        draw_read_s: reading one more token of the history for the draw.
        score_s: scoring them, likewise.
        score_read_s: reading one more token of the history for the score.
        environment_s: one step of the environment, on another machine.
        first_tokens: length of the history at an episode's first step.
        step_tokens: tokens that a step adds to it.
        steps: lengths of episodes, from which those of the simulation are drawn.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    draw_s: Seconds
    draw_read_s: Seconds
    score_s: Seconds
    score_read_s: Seconds
    environment_s: Seconds
    first_tokens: int = Field(ge=1)
    step_tokens: int = Field(ge=1)
    steps: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)


class ScaleRow(BaseModel):
    """Simulations of one scenario with so many tasks and replicas: the one of median time.

    Attributes:
        wall_s: until the last episode ended; likewise `least_wall_s` and `most_wall_s` of all.
        replica_s: time for which replicas were paid: all of them until the end, a dead one until
            its death.
        busy_s: time for which they worked.
        imbalance: work of the busiest replica, in that of the average one.
        read_share: share of the histories' tokens that had to be read, the rest was cached.
        returned_share: share of the steps after an episode's first that came to the replica of the
            step before.
        resent: requests that a dying replica did not answer.
        environments: mean number of environments that are taking a step.
    """

    model_config = ConfigDict(frozen=True)

    scenario: Scenario
    tasks: int
    replicas: int
    wall_s: float
    least_wall_s: float
    most_wall_s: float
    replica_s: float
    busy_s: float
    imbalance: float
    read_share: float
    returned_share: float
    resent: int
    environments: float


class ScaleRun(BaseModel):
    """A scale benchmark, complete or interrupted.

    Attributes:
        machine: where the costs were measured; None if they were given.
    """

    model_config = ConfigDict(frozen=True)

    format_version: int = 1
    complete: bool
    command: str
    machine: Machine | None
    costs: StepCosts
    episodes_per_replica: int
    cache_tokens: int
    seeds: int
    assumptions: tuple[str, ...]
    rows: tuple[ScaleRow, ...] = ()
