"""Run folder of a job: its files, its lock, and its recovery after a kill.

    <output>/config.json     the resolved configuration; a resume must match it
    <output>/rows.jsonl      the job's records, one per line, flushed one by one
    <output>/metrics.jsonl   figures of the run, one object per line
    <output>/run.lock        held while a job works in the folder

A last line that a kill cut short does not count: readers skip it with a warning, the next writer
removes it, and its task is done again.
"""

import json
import os
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Self

from filelock import FileLock, Timeout
from pydantic import BaseModel

from qguide.qnet.errors import ConfigError, RecordError
from qguide.training.data.row_files import (
    ROWS,
    Row,
    address_of,
    has_no_end,
    is_json,
    lines_of,
    regular,
    row_files,
    row_of,
    whole_lines,
)

EXPLORED: Final = "explored.jsonl"
"""Exploration of a job with two stages, beside the rows that it derives from it."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one job's run."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.json"

    @property
    def rows(self) -> Path:
        """The records."""
        return self.path / ROWS

    @property
    def metrics(self) -> Path:
        """The metrics."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of a job that trains."""
        return self.path / "checkpoint"

    @property
    def lock(self) -> Path:
        """The file whose lock a job holds while it works in the folder."""
        return self.path / "run.lock"

    def read_config(self) -> dict[str, Any]:
        """The configuration as a job wrote it; empty if none did."""
        if not self.config.exists():
            return {}
        try:
            found = json.loads(regular(self.config).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{self.config} is not JSON ({error}); name another run folder, or remove it") from error
        if not isinstance(found, dict):
            raise ConfigError(f"{self.config} is no JSON object; name another run folder, or remove it")
        return found


def is_main_process() -> bool:
    """False in the processes that a launcher starts beside the first one."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def open_run(
    folder: Path,
    config: BaseModel,
    *,
    may_change: Set[str] = frozenset({"output"}),
    weights: Mapping[str, str] | None = None,
) -> Iterator[RunFolder]:
    """Start a run in `folder`, or resume the one there, and lock the folder during the block.

    Args:
        folder: created if it is missing; no other job can use it until the block ends.
        config: written to `config.json` by a new run, compared with it by a resumed one.
        may_change: fields and tables that do not change the rows, such as `parallel`; "*" in a
            name stands for anything, as in "upstreams.*.url".
        weights: hashes of the models that the run uses, stored beside the fields of `config`.
    """
    if address := address_of(folder):
        raise ConfigError(
            f"output is {address}, but a job writes and resumes its folder on this machine; name a "
            "folder here, and take its rows there by `qguide export-data`"
        )
    run = RunFolder(folder)
    if not is_main_process():  # the main process holds the folder; the others only read it
        yield run
        return
    with _locked(run):
        _refuse_devices(run)
        _start_or_resume(run, config.model_dump(mode="json") | dict(weights or {}), may_change)
        yield run


@contextmanager
def _locked(run: RunFolder) -> Iterator[None]:
    """Keep other jobs out of the folder; the operating system releases a dead job's lock."""
    run.path.mkdir(parents=True, exist_ok=True)
    lock = FileLock(run.lock)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise ConfigError(
            f"another job is working in {run.path}; wait for it to end or choose another output folder"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _refuse_devices(run: RunFolder) -> None:
    for path in run.path.rglob("*"):
        if has_no_end(path):
            raise ConfigError(
                f"{path} is a device or a pipe, not a file of a run; remove it, or choose another output folder"
            )


def _start_or_resume(run: RunFolder, resolved: Mapping[str, object], may_change: Set[str]) -> None:
    # A job that failed before its first row, by a path that was mistyped, leaves its folder free.
    if run.config.exists() and not _holds_nothing(run):
        _refuse_other_config(run, resolved, may_change)
        return
    if run.rows.exists():
        raise ConfigError(
            f"{run.rows} exists without its config.json, so it cannot be resumed; "
            "choose another output folder or remove it"
        )
    unfinished = run.config.with_suffix(".tmp")
    unfinished.write_text(json.dumps(resolved, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(run.config)


def _holds_nothing(run: RunFolder) -> bool:
    others = (path for path in run.path.rglob("*") if path not in (run.config, run.lock))
    return all(path.is_file() and not path.stat().st_size for path in others)


def _refuse_other_config(run: RunFolder, resolved: Mapping[str, object], may_change: Set[str]) -> None:
    differences = config_differences(run.read_config(), resolved, may_change)
    if differences:
        raise ConfigError(
            f"the run in {run.path} was started under another configuration: "
            f"{'; '.join(differences)}; use its values or another output folder, or remove this one"
        )


def config_differences(
    before: Mapping[str, object], now: Mapping[str, object], may_change: Set[str] = frozenset()
) -> list[str]:
    """Each field that differs between two configurations, with both of its values."""
    old, new = dict(_flat(before)), dict(_flat(now))
    missing = object()
    return [
        f"{name} was {old.get(name)!r} and is {new.get(name)!r}"
        for name in sorted(old | new)
        if not any(fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*") for p in may_change)
        and old.get(name, missing) != new.get(name, missing)
    ]


def _flat(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


class JsonlWriter:
    """Appends rows to a file and flushes each one before `write` returns.

    Only one writer at a time: a job holds its run folder's lock while it writes (`open_run`).
    """

    def __init__(self, path: Path, *, flushes: bool = True) -> None:
        """Open `path` for appending and remove a last line that a kill cut short.

        Args:
            flushes: False for a file that a killed job begins again.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._flushes = flushes
        self._file = path.open("a+b")
        if path.is_file():  # a device may be read without an end
            self._drop_torn_line()

    def _drop_torn_line(self) -> None:
        self._file.seek(0)
        whole = 0
        for line in self._file:
            if line.endswith(b"\n"):
                whole += len(line)
            elif is_json(line):
                self._file.write(b"\n")
                return
        self._file.truncate(whole)

    def write(self, *rows: BaseModel | Mapping[str, object]) -> int:
        """Append rows, all at once; returns their length in bytes."""
        texts = [row.model_dump_json() if isinstance(row, BaseModel) else json.dumps(row) for row in rows]
        return self.write_lines("".join(f"{text}\n" for text in texts).encode())

    def write_lines(self, lines: bytes) -> int:
        """Append rows that are lines already; returns their length in bytes."""
        with self._named_errors():
            written = self._file.write(lines)
            if self._flushes:
                self._file.flush()
        return written

    def close(self) -> None:
        """Close the file."""
        with self._named_errors():
            self._file.close()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Name the file in errors of writing, which say only that there is no room."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def rows_at_once(path: Path) -> Iterator[JsonlWriter]:
    """A writer whose file appears when the block ends, and not if it raises.

    For jobs of seconds, which start over when they are killed.
    """
    unfinished = path.with_suffix(".partial")
    unfinished.unlink(missing_ok=True)
    with JsonlWriter(unfinished, flushes=False) as writer:
        yield writer
    unfinished.replace(path)


def read_rows(source: Path, row_type: type[Row]) -> Iterator[Row]:
    """Read and validate the rows of a source, one by one; see `row_files`.

    A last line that was cut off is left out, with a warning.
    """
    for path in row_files(source):
        for number, line in lines_of(path, row_type):
            yield row_of(line, row_type, path=path, number=number)


def finished_task_ids(path: Path) -> set[str]:
    """Ids of the tasks that have a row in `path`; none if the file does not exist yet."""
    if not path.exists():
        return set()
    return {_task_id(path, number, line) for number, line in whole_lines(path)}


def _task_id(path: Path, number: int, line: bytes) -> str:
    try:
        return str(json.loads(line)["task_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path}, line {number}: not a JSON object with a task_id; remove the line and "
            "resume the run, which will do its task again"
        ) from error
