"""Fingerprints of stages: the configuration and the hashes of the inputs of a result."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from qguide.pipelines.plan import Stage
from qguide.qnet.records import Row
from qguide.training.data.runs import RunFolder, config_differences
from qguide.training.rollouts.harness import MAY_CHANGE

_KEPT_FOR_THE_JOB: Final = {"config.json", "metrics.jsonl", "run.lock", "training_state.pt"}


class Fingerprint(Row):
    """The configuration and inputs of a stage that has begun.

    Attributes:
        config: the job's configuration.
        inputs: hash of each input, by the name in the configuration.
    """

    config: dict[str, JsonValue]
    inputs: dict[str, str]


class InputHashes:
    """Hashes of files and folders; a file that has not changed is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, int, int], bytes] = {}

    def of(self, path: Path) -> str:
        """One hexadecimal hash over a file, or over the names and contents of a folder's files.

        Of a run folder, only what it hands to other jobs counts. What does not exist, such as a
        name on the hub, has an empty hash.
        """
        if path.is_file():
            return self._of_file(path).hex()
        if not path.is_dir():
            return ""
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
