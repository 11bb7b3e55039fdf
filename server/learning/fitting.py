"""Fits of Q models in a child process, `qguide learn` with limits of CPU time and memory.

<folder>/salt                    of the features' hashes; nobody else can tell a model's words
<folder>/versions/7/             a checkpoint, complete from the moment that it is there
"""

import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Final

from qguide.qnet.errors import QGuideError
from qguide.qnet.models.manifest import Licence, read_manifest
from qguide.server.episodes.recorder import TREES
from qguide.server.learning import limited_process
from qguide.server.learning.lines import FitLine
from qguide.server.learning.progress import Progress
from qguide.server.upstreams.managed_process import ManagedProcess, child_environment

KEPT_VERSIONS: Final = 5
_NAME: Final = "learned"
_POLL_S: Final = 0.05
_WALL_PER_CPU: Final = 20  # a fit gives way to everything else on the machine
_MOST_CHARACTERS: Final = 300
_OUT_OF_CPU: Final = 128 + 24  # status of a child that the system ended for its CPU time
_OUT_OF_MEMORY: Final = ("MemoryError", "Memory allocation", "failed to map segment")
"""Last words of Python, of OpenBLAS, and of a library that could not be loaded."""
_EMPTY: Final = ("holds no episode", "source = []")
"""Words of the job for recordings that have none of the episodes, and for no recordings."""
_PLAIN: Final = {"OMP_NUM_THREADS": "1", "_TYPER_STANDARD_TRACEBACK": "1"}
"""For the child: one thread, and tracebacks whose last line has the whole reason."""
_FEWEST_DECISIONS: Final = 20  # decisions below which their other figures say little
_FEWEST_CREDITED: Final = 20  # held-back tasks or episodes, as for a licence by credit
_LITTLE_ROOM: Final = 0.02
_CHANCE: Final = 0.6  # noise ceiling of pairs in order, of which chance has .5


@dataclass(frozen=True, slots=True)
class Fitter:
    """Fits Q models from the recorded episodes of a folder."""

    recordings: Path
    cpu_s: int
    memory_bytes: int
    _stopped: Event = field(default_factory=Event)

    def stop(self) -> None:
        """End a fit that runs; it leaves nothing behind."""
        self._stopped.set()

    def fit(self, folder: Path, progress: Progress) -> FitLine | None:
        """Fit a new version; None if it was stopped, or there is nothing to learn from.

        A failure is a line with its reason.
        """
        begun, episodes = progress.episodes.count, progress.newest()
        if not episodes:  # a rollback came in between; a fit of no episodes would be one of all
            return None
        versions = folder / "versions"
        version = 1 + max([progress.fit.version if progress.fit else 0, *_numbers(versions)])
        work = versions / f".{version}"
        licence: Licence | None = None
        try:
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(mode=0o700, parents=True)
            reason = self._run(work, _config(self.recordings, work, episodes, _salt(folder)))
            if reason == "":
                os.replace(work / "run" / "checkpoint", versions / str(version))
                manifest = read_manifest(versions / str(version))
                licence = manifest.licence if manifest else None
        except (OSError, QGuideError) as error:
            reason = str(error)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        if reason is None:
            return None
        return FitLine(
            version=version,
            episodes=begun,
            licensed=licence is not None and may_be_tried(licence),
            reason=f"the fit failed: {reason}" if licence is None else licence.reason,
            failed=licence is None,
            missing=missing_of(licence) if licence else "",
        )

    def forget_old(self, folder: Path, *, keep: Collection[int]) -> None:
        """Remove all but the newest versions and those that guide or may be tried."""
        versions = folder / "versions"
        for number in sorted(_numbers(versions))[:-KEPT_VERSIONS]:
            if number not in keep:
                shutil.rmtree(versions / str(number), ignore_errors=True)

    def _run(self, work: Path, config: Path) -> str | None:
        """Run the fit to its end; returns "", or the reason of a failure, or None if stopped."""
        learn = (sys.executable, "-P", "-m", "qguide", "learn", "--config", str(config))
        limited = (str(limited_process.__file__), str(self.cpu_s), str(self.memory_bytes))
        ends = time.monotonic() + _WALL_PER_CPU * self.cpu_s
        with ManagedProcess(
            "the fit",
            (sys.executable, "-I", *limited, *learn),
            environment=child_environment(os.environ) | _PLAIN,
            output=work / "log",
        ) as process:
            while process.running:
                if self._stopped.wait(_POLL_S):
                    return None
                if time.monotonic() > ends:
                    return f"it was not done after {_WALL_PER_CPU * self.cpu_s} s"
            return self._reason(process.status or 0, work / "log")

    def _reason(self, status: int, log: Path) -> str:
        if status == 0:
            return ""
        if status == _OUT_OF_CPU:
            return f"it took more than {self.cpu_s} s of CPU time (QGUIDE_LEARN_CPU_S)"
        lines = log.read_text(errors="replace").splitlines()
        last = next((line for line in reversed(lines) if line), "no message, as on a full disk")
        if any(words in last for words in _EMPTY):
            return (
                "none of its episodes is recorded any more; they were deleted, or are beyond "
                "QGUIDE_EPISODES_MAX_FILES. New ones are learned from"
            )
        if any(words in last for words in _OUT_OF_MEMORY):
            megabytes = self.memory_bytes // 1024**2
            return f"it needs more than {megabytes:,} MiB of memory (QGUIDE_LEARN_MEMORY_MB)"
        return last[:_MOST_CHARACTERS]


def _config(recordings: Path, work: Path, episodes: Sequence[str], salt: str) -> Path:
    """The job file of a fit; strings and lists of JSON are TOML's as well."""
    fields = {
        "source": [str(path.resolve()) for path in sorted(recordings.glob(f"{TREES}-*.jsonl"))],
        "output": str((work / "run").resolve()),
        "name": _NAME,
        "environment": "served",
        "salt": salt,
        "skip_bad": True,
        "held_back": "auto",  # where tasks are few, those to come are the same
        "episodes": list(episodes),
    }
    path = work / "learn.toml"
    path.write_text("".join(f"{name} = {json.dumps(field)}\n" for name, field in fields.items()))
    return path


def _salt(folder: Path) -> str:
    path = folder / "salt"
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            file.write(secrets.token_hex(16))
    return path.read_text()


def _numbers(versions: Path) -> Iterator[int]:
    if versions.is_dir():
        yield from (int(path.name) for path in versions.iterdir() if path.name.isdigit())


def may_be_tried(licence: Licence) -> bool:
    """True for a Q model that a trial may compare with the agent.

    A licence, by which an operator lets a model guide without a trial, asks for proof, and for more than each of the
    agent's own preferences, such as the vote of several candidates. An agent that is not guided takes one draw, and the
    trial is the proof. So it is enough here that the actions that the model prefers earned more than was expected, be
    it by chance.
    """
    credited = licence.credit is not None and licence.credit > 0
    return licence.granted or (credited and licence.credit_tasks >= _FEWEST_CREDITED)


def missing_of(licence: Licence) -> str:
    """The one thing that a version lacks most to be tried; "" of one that may be."""
    if may_be_tried(licence):
        return ""
    if licence.credit_tasks < _FEWEST_CREDITED:
        return (
            f"too few episodes: {licence.credit_tasks} were held back, and a trial takes {_FEWEST_CREDITED} whose "
            "actions can be judged"
        )
    if licence.credit == 0:
        return "no signal: all outcomes are alike, or all actions, so none is known to be better"
    if licence.decisions >= _FEWEST_DECISIONS and (lack := _lack_of_decisions(licence)):
        return lack
    return (
        "no signal: what it read in the episodes does not tell good choices from bad ones; more episodes, other tasks, "
        "or an outcome that says more than success, may help"
    )


def _lack_of_decisions(licence: Licence) -> str:
    # Outcome of the best candidate in hindsight, minus that of the agent's own choice.
    own, best = licence.choosers.get(licence.own), licence.choosers.get("oracle")
    if own and best and (room := best.outcome - own.outcome) < _LITTLE_ROOM:
        return (
            f"no room: the best of the candidates is {max(room, 0.0):.3f} in outcome above the agent's own choice; "
            "more candidates, or a higher temperature, make some"
        )
    if licence.ceiling is not None and licence.ceiling < _CHANCE:
        return (
            f"no signal: a Q model that knew all would have {licence.ceiling:.0%} of the pairs of choices in the order "
            "of these outcomes, chance 50%; the outcome hardly depends on these choices"
        )
    if more := licence.missing_decisions:
        return f"too few decisions: about {more:,} more would show the gain, if it is real"
    return ""
