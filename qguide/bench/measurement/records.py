"""What a run writes: every sample, so that each figure of the table can be computed again."""

from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict

from qguide.bench.measurement.names import OURS, REFERENCE, over
from qguide.bench.measurement.steps import Point

Endpoint = Literal["act", "score"]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Samples(_Row):
    """One thing, measured again and again: CPU time of all threads, and time on the clock."""

    cpu_s: tuple[float, ...] = ()
    wall_s: tuple[float, ...] = ()

    @property
    def median_cpu_s(self) -> float:
        """Half of the samples took less CPU time."""
        return median(self.cpu_s)

    @property
    def median_wall_s(self) -> float:
        """Half of the samples took less time on the clock."""
        return median(self.wall_s)

    def and_one_more(self, cpu_s: float, wall_s: float) -> "Samples":
        """These samples and another."""
        return Samples(cpu_s=(*self.cpu_s, cpu_s), wall_s=(*self.wall_s, wall_s))


class ContestantRow(_Row):
    """One contestant at one point.

    Attributes:
        max_q_difference: from the reference, over all repetitions and candidates.
        agrees: whether that is within the tolerance; who computes something else is not compared.
    """

    name: str
    samples: Samples
    max_q_difference: float
    agrees: bool


class _OfAPoint(_Row):
    """What was measured at one point.

    Attributes:
        alike: tokens that all candidates begin with.
    """

    model: str
    history: int
    candidates: int
    candidate_tokens: int
    alike: int = 0

    @property
    def label(self) -> str:
        """The point as the command line spells it."""
        return str(Point(self.history, self.candidates, self.candidate_tokens, self.alike))


class PointRow(_OfAPoint):
    """All contestants at one point, measured in turns.

    Attributes:
        new_tokens: what a scorer that forgets nothing has to compute.
        floor_flops: the least that these tokens take.
        gemm_flops: of one of the matrix products that were measured in the same turns.
    """

    new_tokens: int
    floor_flops: int
    gemm_flops: int
    gemm: Samples
    contestants: tuple[ContestantRow, ...]

    @property
    def gemm_flops_per_s(self) -> float:
        """The machine's rate, per second of CPU time."""
        return self.gemm_flops / self.gemm.median_cpu_s

    @property
    def floor_cpu_s(self) -> float:
        """CPU time of the new tokens if all of it were matrix products at that rate."""
        return self.floor_flops / self.gemm_flops_per_s

    @property
    def floor_wall_s(self) -> float:
        """The same by the clock, which is what counts on an accelerator."""
        return self.floor_flops / self.gemm_flops * self.gemm.median_wall_s

    def contestant(self, name: str) -> ContestantRow | None:
        """The contestant of that name, if it took part and agreed with the reference."""
        return next((row for row in self.contestants if row.name == name and row.agrees), None)

    def ratio(self, name: str, *, wall: bool = False) -> float | None:
        """The median of a contestant's time over that of ours, served as it is."""
        theirs, ours = self.contestant(name), self.contestant(over(name))
        if theirs is None or ours is None:
            return None
        if wall:
            return theirs.samples.median_wall_s / ours.samples.median_wall_s
        return theirs.samples.median_cpu_s / ours.samples.median_cpu_s


class SessionsRow(_OfAPoint):
    """Steps of that many sessions at once: in one call, over HTTP one request for each."""

    sessions: int
    samples: Samples
    name: str = OURS

    @property
    def scores_per_s(self) -> float:
        """Candidates scored per second of the clock."""
        return self.sessions * self.candidates / self.samples.median_wall_s


class ModelRow(_Row):
    """A model of the run; its weights are random."""

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
    """Where it ran."""

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


class Run(_Row):
    """A whole run, or what an interrupted one had measured.

    Attributes:
        tolerance: largest |ΔQ| to the reference, relative to the largest |Q| above 1.
        observation_tokens: of every step.
    """

    format_version: int = 1
    complete: bool
    command: str
    machine: Machine
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
    """A moment of a soak.

    Attributes:
        cache_bytes: the most since the sample before.
        rss_bytes: of the whole process; None where nobody knows.
        requests: so far.
    """

    at_s: float
    cache_bytes: int
    rss_bytes: int | None
    evictions: int
    requests: int


class SoakRun(_Row):
    """Sessions that grew for a while.

    Attributes:
        calls_over_budget: calls after which the cache held more than it may.
        tolerance: largest |ΔQ| to the reference, relative to the largest |Q| above 1.
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
    def kept_its_promises(self) -> bool:
        """Within the budget after every call, and right at every check."""
        return not self.calls_over_budget and not self.failed_checks

    @property
    def rss_growth_bytes(self) -> int | None:
        """The most memory in the last quarter over that in the second; the first fills caches."""
        known = [s.rss_bytes for s in self.samples if s.rss_bytes is not None]
        quarter = len(known) // 4
        if not quarter:
            return None
        return max(known[-quarter:]) - max(known[quarter : 2 * quarter])


class Percentiles(_Row):
    """Of many values: the least that half, 95 and 99 per cent of them do not exceed."""

    p50: float
    p95: float
    p99: float


class LoadRow(_Row):
    """One number of clients at one endpoint.

    Attributes:
        requests: begun while it counted.
        errors: a status, or what broke -> how many of them had it instead of an answer.
        requests_per_s: good answers.
        overhead_ms: the client's clock without what the server says that drawing and scoring took.
        sample_ms: median of what the server says; likewise `score_ms`.
        client_cpu_share: of the clients' one core; near 1 it is they who are measured.
        client_ms: median of a round trip to a server that does nothing, the same clients; a part of
            `overhead_ms`.
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


class ServeRun(_Row):
    """Loads on a server, or what an interrupted run had measured.

    Attributes:
        candidates: M of every request.
        warm_up_s: of each load, before what counts.
    """

    format_version: int = 1
    complete: bool
    command: str
    machine: Machine
    seed: int
    candidates: int
    warm_up_s: float
    rows: tuple[LoadRow, ...] = ()


class FairnessRow(_Row):
    """One scene.

    Attributes:
        errors: a status -> how many requests of the key got it instead of scores.
        latency_ms: of the key's scores, with the other key at work.
    """

    scene: str
    errors: dict[str, int]
    latency_ms: Percentiles | None


class FairnessRun(_Row):
    """All scenes, or what an interrupted run had measured.

    Attributes:
        clients: of the other key.
    """

    format_version: int = 1
    complete: bool
    command: str
    machine: Machine
    clients: int
    rows: tuple[FairnessRow, ...] = ()
