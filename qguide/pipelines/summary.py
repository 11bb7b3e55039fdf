"""`summary.json` of a pipeline: state, times and fingerprint of each stage, kept between runs."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Final, Literal

from filelock import FileLock, Timeout
from pydantic import AwareDatetime, BaseModel, JsonValue, ValidationError

from qguide.pipelines.plan import Stage
from qguide.qnet.errors import ConfigError
from qguide.qnet.records import Row
from qguide.training.data.row_files import regular
from qguide.training.data.runs import RunFolder, config_differences
from qguide.training.rollouts.harness import MAY_CHANGE

_KEPT_FOR_THE_JOB: Final = {"config.json", "metrics.jsonl", "run.lock", "training_state.pt"}


class Fingerprint(Row):
    """The configuration and inputs of a stage that has begun."""

    config: dict[str, JsonValue]
    inputs: dict[str, str]


class InputHashes:
    """Hashes of files and folders; a file that has not changed is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, int, int], bytes] = {}

    def of(self, path: Path) -> str:
        """One hexadecimal hash over a file, or over the names and contents of a folder's files.

        Of a run folder, only what it hands to other jobs counts; of a source with a star, all that
        it names. What does not exist, such as a name on the hub, has an empty hash.
        """
        if path.is_file():
            return self._of_file(path).hex()
        if not path.is_dir():
            # A broken link is there by its own name.
            named = [self.of(Path(found)) for found in sorted(glob(str(path))) if found != str(path)]
            return hashlib.sha256(" ".join(named).encode()).hexdigest() if named else ""
        digest = hashlib.sha256()
        for file in _files(path):
            digest.update(f"{file.relative_to(path).as_posix()}\n".encode() + self._of_file(file))
        return digest.hexdigest()

    def fingerprint(self, stage: Stage) -> Fingerprint:
        """The fingerprint of a stage whose inputs are complete."""
        config = stage.config.model_dump(mode="json")
        return Fingerprint(config=config, inputs={read.named: self.of(read.path) for read in stage.reads})

    def _of_file(self, path: Path) -> bytes:
        status = path.stat()
        key = (path, status.st_size, status.st_mtime_ns)
        if key not in self._known:
            with path.open("rb") as file:
                self._known[key] = hashlib.file_digest(file, "sha256").digest()
        return self._known[key]


def _files(folder: Path) -> Iterator[Path]:
    run = RunFolder(folder)
    if run.lock.exists() and run.rows.exists():
        yield run.rows
        return
    for path in sorted(folder.rglob("*")):
        volatile = run.lock.exists() and path.parent == folder and path.name in _KEPT_FOR_THE_JOB
        if path.is_file() and not volatile and path.suffix not in (".partial", ".tmp"):
            yield path


def changes(before: Fingerprint, now: Fingerprint) -> list[str]:
    """Differences between two fingerprints of one stage that may change its result, in words."""
    inputs = [
        f"{name} has changed"
        for name in sorted(before.inputs.keys() & now.inputs.keys())
        if before.inputs[name] != now.inputs[name]
    ]
    return [*config_differences(before.config, now.config, MAY_CHANGE), *inputs]


SUMMARY: Final = "summary.json"

State = Literal["waiting", "running", "finished", "failed", "interrupted", "blocked"]
"""`blocked`: a stage that it needs has failed."""


class StageSummary(BaseModel, extra="forbid"):
    """One stage, over all of its starts.

    Attributes:
        wall_s, cpu_s: time of all its starts.
        exit_status: of its last process; None while it has not ended.
        failures: tasks that its last process could not play.
        differing: those of them whose replays differed.
        made_of: what its output was made of, once it has finished.
        started_of: what its output is being made of, from its start until it has finished.
    """

    state: State = "waiting"
    command: str = ""
    log: str = ""
    starts: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    exit_status: int | None = None
    failures: int = 0
    differing: int = 0
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    made_of: Fingerprint | None = None
    started_of: Fingerprint | None = None


class Summary(BaseModel, extra="forbid"):
    """A pipeline's summary.

    Attributes:
        wall_s: time of all runs of the pipeline, in which stages ran side by side.
        cpu_s: CPU time of all stages.
    """

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
    try:
        held = FileLock(folder / "run.lock").acquire(blocking=False)
    except Timeout as error:
        raise ConfigError(f"a pipeline is running in {folder}; wait for its end or choose another output") from error
    with held:
        yield
