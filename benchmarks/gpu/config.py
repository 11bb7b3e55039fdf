"""Options and records of `python -m benchmarks gpu`."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from benchmarks.measurement.options import BenchOptions, Device, OutputFile
from benchmarks.measurement.records import BenchRun

Status = Literal["passed", "failed", "out of time", "skipped"]


class GpuCheck(BenchOptions):
    """Options of `python -m benchmarks gpu`.

    Attributes:
        output: JSON file.
        device: "cuda", or "cpu" to try the check itself.
        small: tiny shapes, which a CPU runs too.
        minutes: limit of the whole check; a part that would exceed it is stopped.
        patience: factor of the parts' own limits, for slower machines.
        command: the command line.
    """

    output: OutputFile
    device: Device = "cuda"
    small: bool = False
    minutes: float = Field(default=7.5, gt=0)
    patience: float = Field(default=1.0, gt=0)
    command: str = ""


class PartRow(BaseModel):
    """One part of a check, run in a process of its own.

    Attributes:
        budget_s: most time that it may take.
        figures: what it measured; empty unless it passed, or where tests failed.
        reason: why it did not pass, or the end of what it printed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    status: Status
    budget_s: float
    wall_s: float
    figures: dict[str, Any] = {}
    reason: str = ""


class GpuRun(BenchRun):
    """A check of one machine.

    Attributes:
        packages: versions of the packages that affect it; None for one that is not installed.
        cuda: version of CUDA that torch was built for; None for a CPU build.
        device_memory: bytes of the GPU; 0 on a CPU.
    """

    small: bool
    packages: dict[str, str | None]
    cuda: str | None
    device_memory: int
    wall_s: float = 0.0
    parts: tuple[PartRow, ...] = ()

    @property
    def passed(self) -> bool:
        """True if every part passed; one that could not run has checked nothing."""
        return self.complete and all(part.status == "passed" for part in self.parts)
