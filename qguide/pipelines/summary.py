"""`summary.json` of a pipeline: state, times and fingerprint of each stage, kept between runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from filelock import FileLock, Timeout
from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from qguide.pipelines.fingerprint import Fingerprint
from qguide.qnet.errors import ConfigError
from qguide.training.data.row_files import regular

SUMMARY: Final = "summary.json"

State = Literal["waiting", "running", "finished", "failed", "interrupted", "blocked"]
"""`blocked`: a stage that it needs has failed."""


class StageSummary(BaseModel):
    """One stage, over all of its starts.

    Attributes:
        starts: how often its process was started.
        wall_s, cpu_s: time of all its starts.
        exit_status: of its last process; None while it has not ended.
        failures: tasks that its last process could not play.
        made_of: what its output was made of, once it has finished.
        started_of: what its output is being made of, from its start until it has finished.
    """

    model_config = ConfigDict(extra="forbid")

    state: State = "waiting"
    command: str = ""
    log: str = ""
    starts: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    exit_status: int | None = None
    failures: int = 0
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    made_of: Fingerprint | None = None
    started_of: Fingerprint | None = None


class Summary(BaseModel):
    """A pipeline's summary.

    Attributes:
        wall_s: time of all runs of the pipeline, in which stages ran side by side.
        cpu_s: CPU time of all stages.
    """

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    wall_s: float = 0.0
    cpu_s: float = 0.0
    stages: dict[str, StageSummary] = {}

    def stage(self, name: str) -> StageSummary:
        """The summary of that stage; a fresh one at its first use."""
        return self.stages.setdefault(name, StageSummary())


class SummaryFile:
    """The file of a summary, replaced as a whole with each change."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SUMMARY
        self.summary = self._read()

    def save(self) -> None:
        """Write the summary."""
        self.summary.cpu_s = sum(stage.cpu_s for stage in self.summary.stages.values())
        unfinished = self._path.with_suffix(".tmp")
        unfinished.write_text(self.summary.model_dump_json(indent=2) + "\n", encoding="utf-8")
        unfinished.replace(self._path)

    def _read(self) -> Summary:
        if not self._path.exists():
            return Summary()
        try:
            return Summary.model_validate_json(regular(self._path).read_bytes())
        except ValidationError as error:
            raise ConfigError(
                f"{self._path} is not a pipeline's summary ({error.errors()[0]['msg']}); choose "
                "another output for the pipeline, or remove the file"
            ) from error


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep another run of the pipeline out of its folder during the block."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "run.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise ConfigError(f"a pipeline is running in {folder}; wait for its end or choose another output") from error
    try:
        yield
    finally:
        lock.release()
