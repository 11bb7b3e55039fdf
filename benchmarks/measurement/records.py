"""Records of benchmark runs, with every sample, so that all figures can be recomputed."""

from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict

from benchmarks.measurement.names import OURS, REFERENCE, over
from benchmarks.measurement.steps import Point

Endpoint = Literal["act", "score"]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Samples(_Row):
    """Repeated measurements: CPU time of all threads, and wall-clock time."""

    cpu_s: tuple[float, ...] = ()
    wall_s: tuple[float, ...] = ()

    @property
    def median_cpu_s(self) -> float:
        """Median CPU time."""
        return median(self.cpu_s)

    @property
    def median_wall_s(self) -> float:
        """Median wall-clock time."""
        return median(self.wall_s)

    def and_one_more(self, cpu_s: float, wall_s: float) -> "Samples":
        """The samples with one more."""
        return Samples(cpu_s=(*self.cpu_s, cpu_s), wall_s=(*self.wall_s, wall_s))


class ContestantRow(_Row):
    """One implementation at one point.

    Attributes:
        max_q_difference: largest |ΔQ| to the reference, over all repetitions and candidates.
        agrees: True if that is within the tolerance; otherwise its times are not compared.
    """

    name: str
    samples: Samples
    max_q_difference: float
    agrees: bool


class _OfAPoint(_Row):
    """Base of the measurements at one point.

    Attributes:
        alike: number of tokens that all candidates begin with.
    """

    model: str
    history: int
    candidates: int
    candidate_tokens: int
    alike: int = 0

    @property
    def label(self) -> str:
        """The point in the format of the command line."""
        return str(Point(self.history, self.candidates, self.candidate_tokens, self.alike))


class PointRow(_OfAPoint):
    """All implementations at one point, measured in turns.

    Attributes:
        new_tokens: tokens that no earlier step has seen.
        floor_flops: lower bound of the floating-point operations for these tokens.
        gemm_flops: operations of one matrix product, which is measured in the same turns.
    """

    new_tokens: int
    floor_flops: int
    gemm_flops: int
    gemm: Samples
    contestants: tuple[ContestantRow, ...]

    @property
    def gemm_flops_per_s(self) -> float:
        """Matrix product rate of the machine, per second of CPU time."""
        return self.gemm_flops / self.gemm.median_cpu_s

    @property
    def floor_cpu_s(self) -> float:
        """Lower bound of the CPU time of the step, at the rate of the matrix product."""
        return self.floor_flops / self.gemm_flops_per_s

    @property
    def floor_wall_s(self) -> float:
        """Lower bound of the wall-clock time, the relevant one on an accelerator."""
        return self.floor_flops / self.gemm_flops * self.gemm.median_wall_s

    def contestant(self, name: str) -> ContestantRow | None:
        """The implementation of that name, if it was measured and agrees with the reference."""
        return next((row for row in self.contestants if row.name == name and row.agrees), None)

    def ratio(self, name: str, *, wall: bool = False) -> float | None:
        """Median time of an implementation divided by that of ours, either in process or HTTP."""
        theirs, ours = self.contestant(name), self.contestant(over(name))
        if theirs is None or ours is None:
            return None
        if wall:
            return theirs.samples.median_wall_s / ours.samples.median_wall_s
        return theirs.samples.median_cpu_s / ours.samples.median_cpu_s


class SessionsRow(_OfAPoint):
    """Steps of concurrent sessions: scored in one call, or over HTTP with one request each."""

    sessions: int
    samples: Samples
    name: str = OURS

    @property
    def scores_per_s(self) -> float:
        """Candidates scored per second of wall-clock time."""
        return self.sessions * self.candidates / self.samples.median_wall_s


class ModelRow(_Row):
    """A model of the run, with random weights."""

    name: str
    parameters: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    head_width: int


class Machine(_Row):
    """Hardware and library versions of a run."""

    cpu: str
    cpu_flags: tuple[str, ...]
    cores: int
    accelerator: str
    device: str
    threads: int
    python: str
    torch: str
    transformers: str
    torch_cpu_capability: str


class BenchRun(_Row):
    """A benchmark, complete or interrupted."""

    format_version: int = 1
    complete: bool
    command: str
    machine: Machine


class Run(BenchRun):
    """A scoring benchmark, complete or interrupted.

    Attributes:
        tolerance: maximum |ΔQ| to the reference, relative to max(1, |Q|).
        observation_tokens: tokens of the new observation of each step.
    """

    dtype: str
    seed: int
    repetitions: int
    warm_ups: int
    observation_tokens: int
    reference: str = REFERENCE
    tolerance: float
    models: tuple[ModelRow, ...] = ()
    points: tuple[PointRow, ...] = ()
    sessions: tuple[SessionsRow, ...] = ()


class SoakSample(_Row):
    """One sample of a soak test.

    Attributes:
        cache_bytes: maximum size of the cache since the previous sample.
        rss_bytes: resident memory of the process; None if not measured.
        requests: number of requests so far.
    """

    at_s: float
    cache_bytes: int
    rss_bytes: int | None
    evictions: int
    requests: int


class SoakRun(_Row):
    """A soak test.

    Attributes:
        calls_over_budget: number of calls after which the cache exceeded its budget.
        tolerance: maximum |ΔQ| to the reference, relative to max(1, |Q|).
    """

    format_version: int = 1
    command: str
    sessions: int
    candidates: int
    batch: int
    dtype: str
    seed: int
    seconds: float
    budget_bytes: int
    calls: int
    requests: int
    computed_tokens: int
    cached_tokens: int
    evictions: int
    largest_cache_bytes: int
    calls_over_budget: int
    checks: int
    failed_checks: int
    max_q_difference: float
    tolerance: float
    samples: tuple[SoakSample, ...]

    @property
    def passed(self) -> bool:
        """True if the cache never exceeded its budget and every check of Q succeeded."""
        return not self.calls_over_budget and not self.failed_checks

    @property
    def rss_growth_bytes(self) -> int | None:
        """Maximum memory in the last quarter minus that in the second; the first fills caches."""
        known = [s.rss_bytes for s in self.samples if s.rss_bytes is not None]
        quarter = len(known) // 4
        if not quarter:
            return None
        return max(known[-quarter:]) - max(known[quarter : 2 * quarter])


class Percentiles(_Row):
    """Nearest-rank percentiles of a set of values."""

    p50: float
    p95: float
    p99: float


class LoadRow(_Row):
    """Load with one number of clients at one endpoint.

    Attributes:
        requests: requests begun during the measurement.
        errors: status or class of a connection error -> number of requests.
        requests_per_s: successful answers per second.
        overhead_ms: latency minus the times that the server reports for drawing and scoring.
        sample_ms: median time that the server reports for drawing; likewise `score_ms`.
        client_cpu_share: CPU share of the clients' core; near 1 the clients are the bottleneck.
        client_ms: median round trip of the same clients to an idle server, a part of
            `overhead_ms`.
        server_cpu_ms: CPU time of the server per request; None if its process is unknown. Other
            work on the machine changes it far less than it changes latencies.
        idle_cpu_ms: the same of the idle server.
    """

    models: str
    endpoint: Endpoint
    clients: int
    seconds: float
    requests: int
    errors: dict[str, int]
    requests_per_s: float
    latency_ms: Percentiles | None
    overhead_ms: Percentiles | None
    sample_ms: float | None
    score_ms: float | None
    client_cpu_share: float
    client_ms: float | None = None
    server_cpu_ms: float | None = None
    idle_cpu_ms: float | None = None

    @property
    def own_ms(self) -> float | None:
        """Median latency over that of the idle server; drawing and scoring are part of it."""
        if self.latency_ms is None or self.client_ms is None:
            return None
        return self.latency_ms.p50 - self.client_ms


class ServeRun(BenchRun):
    """A load test, complete or interrupted.

    Attributes:
        candidates: M of every request.
        warm_up_s: seconds before the measurement of each load.
    """

    seed: int
    candidates: int
    warm_up_s: float
    rows: tuple[LoadRow, ...] = ()


class FairnessRow(_Row):
    """One scene of a fairness run.

    Attributes:
        errors: status -> number of the key's requests that were answered with it.
        latency_ms: latency of the key's scores under the load of the other key.
        slowest_health_ms: longest wait for /healthz; None in records from before it was measured.
    """

    endpoint: str = "score"
    scene: str
    errors: dict[str, int]
    latency_ms: Percentiles | None
    slowest_health_ms: float | None = None


class FairnessRun(BenchRun):
    """A fairness benchmark, complete or interrupted.

    Attributes:
        clients: number of clients of the other key.
    """

    clients: int
    rows: tuple[FairnessRow, ...] = ()


class RolloutsRow(_Row):
    """Episodes of a hosted policy with so many of them at once.

    Attributes:
        parallel: number of episodes at once.
        requests: number of requests that the upstream got.
    """

    parallel: int
    requests: int
    seconds: float


class RolloutsRun(BenchRun):
    """A rollout benchmark, complete or interrupted.

    Attributes:
        steps: number of steps of each episode.
        delay_s: time that the upstream takes for every answer.
    """

    episodes: int
    steps: int
    delay_s: float
    rows: tuple[RolloutsRow, ...] = ()
