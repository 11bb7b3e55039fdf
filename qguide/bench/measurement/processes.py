"""The processes that a benchmark starts: what they say when they fail, and their end."""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from qnet.errors import ConfigError

START_S = 1800.0
"""A large model on a busy machine takes its time."""
ANSWER_S = 1800.0

_SHOWN_CHARACTERS = 600
_END_S = 20.0


class Child:
    """A running process.

    Attributes:
        name: as errors call it.
    """

    def __init__(self, name: str, process: "subprocess.Popen[str]", log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @property
    def stdin(self) -> IO[str]:
        """Its standard input."""
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[str]:
        """Its standard output."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def running(self) -> bool:
        """True until it has ended."""
        return self._process.poll() is None

    def family(self) -> list[int]:
        """Its id and those of all that it started, as far as they run."""
        children: dict[int, list[int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                text = stat.read_text()
            except OSError:  # it has just ended
                continue
            # The name, in brackets, may hold anything; after it come the state and the parent.
            state, parent = text.rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(stat.parent.name))
        family = [self._process.pid]
        for pid in family:
            family += children.get(pid, [])
        return family

    def failure(self, what: str) -> ConfigError:
        """Error with the end of its log."""
        said = " ".join(self._log.read_text(errors="replace").split())
        return ConfigError(f"{self.name} {what}; it said: …{said[-_SHOWN_CHARACTERS:]}")


@contextmanager
def child(
    name: str,
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    piped: bool = False,
) -> Iterator[Child]:
    """A process that lives as long as the block.

    Args:
        log: what it writes goes here.
        environment: added to this process's.
        piped: talk with it through stdin and stdout.

    Raises:
        ConfigError: it cannot be started.
    """
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else output,
                stderr=output,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            raise ConfigError(f"{command[0]} cannot be started: {error.strerror}") from error
    with process:
        try:
            yield Child(name, process, log)
        finally:
            _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    """Ask, wait, and insist."""
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
