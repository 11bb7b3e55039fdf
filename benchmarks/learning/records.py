"""Results of `python -m benchmarks learning-curve` and `learning-latency`."""

from collections.abc import Sequence
from statistics import fmean, quantiles
from typing import Self

from pydantic import BaseModel, ConfigDict

from benchmarks.measurement.records import BenchRun, Machine


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PhaseChange(_Row):
    """A change of the phase of learning.

    Attributes:
        episode: number of episodes that had ended.
    """

    episode: int
    phase: str
    reason: str


class CurveRow(_Row):
    """Episodes of one agent at one server.

    Attributes:
        learns: the server runs with --learn.
        changed_at: episodes after which other things were true; 0: that never happened.
        told_earned: the agent told what it had earned before each step.
        rewrites: what the agent changed in its messages.
        in_process: the server was in the process of the agent, and every fit ended before the next
            episode.
        outcomes: rewards of the episodes, in order.
        state: the last answer of GET /v1/learning; empty without learning.
    """

    environment: str
    agent: str
    seed: int
    learns: bool
    changed_at: int = 0
    told_earned: bool = False
    rewrites: str = "nothing"
    in_process: bool = False
    outcomes: tuple[float, ...]
    phases: tuple[PhaseChange, ...] = ()
    state: dict[str, object] = {}
    seconds: float

    def means(self, block: int) -> list[float]:
        """Mean outcome of each whole block of episodes."""
        whole = len(self.outcomes) // block * block
        return [fmean(self.outcomes[n : n + block]) for n in range(0, whole, block)]

    def regret(self, episodes: int) -> float:
        """Sum of what the first episodes lack to an outcome of 1 each."""
        return sum(1 - outcome for outcome in self.outcomes[:episodes])

    def first(self, phase: str) -> int | None:
        """Episodes before a phase began for the first time; None if it never did."""
        return next((change.episode for change in self.phases if change.phase == phase), None)


class CurveRun(BenchRun):
    """All rows of a measurement."""

    rows: tuple[CurveRow, ...] = ()


class Spread(_Row):
    """Times of the replies at one server, in milliseconds."""

    replies: int
    p50_ms: float
    p95_ms: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self:
        """The spread of some times, two at least."""
        cuts = quantiles(seconds, n=20, method="inclusive")
        return cls(replies=len(seconds), p50_ms=cuts[9] * 1e3, p95_ms=cuts[18] * 1e3)


class LatencyRow(_Row):
    """The replies of a server that learns, and of one beside it that does not."""

    part: str
    learning: Spread
    plain: Spread

    @property
    def p95_ratio(self) -> float:
        """Ratio of the slow replies' time with learning to that without."""
        return self.learning.p95_ms / self.plain.p95_ms


class LatencyRun(_Row):
    """All parts of a measurement."""

    command: str
    machine: Machine
    environment: str
    rows: tuple[LatencyRow, ...]
