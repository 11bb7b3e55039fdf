"""Runs a plan: starts each stage when what it needs is finished and slots are free."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, Final, Self

from qguide.pipelines.plan import Plan, Stage
from qguide.pipelines.stage_process import ProcessEnd, StageProcess, failures_since, last_lines
from qguide.pipelines.summary import Fingerprint, InputHashes, State, SummaryFile, changes
from qguide.pipelines.views import LiveTable, PlainLines
from qguide.qnet.errors import ConfigError, StageFailedError
from qguide.training.data.runs import RunFolder

GRACE_S: Final = 30.0
"""Time for interrupted stages to end before they are killed."""

_TICK_S: Final = 0.25
_SHOWN_LINES: Final = 10
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Counts SIGINT and SIGTERM inside its block, instead of ending the process; at the second stages are killed."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._request) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


@dataclass(frozen=True, slots=True)
class _Running:
    """A stage that runs."""

    stage: Stage
    process: StageProcess
    made_of: Fingerprint
    metrics_end: int


class PipelineRunner:
    """One run of a plan.

    Attributes:
        redo_changed: run a stage again from its beginning if its configuration or inputs have changed since it finished
            or began, with its output moved aside; otherwise that is an error.
        retry_failures: start finished stages again of which tasks failed.
    """

    def __init__(
        self,
        plan: Plan,
        summaries: SummaryFile,
        *,
        view: LiveTable | PlainLines,
        stop: StopSignals,
        redo_changed: bool = False,
        retry_failures: bool = False,
    ) -> None:
        self.redo_changed = redo_changed
        self.retry_failures = retry_failures
        self._plan = plan
        self._summaries = summaries
        self._view = view
        self._stop = stop
        self._hashes = InputHashes()
        self._waiting = {n: stage for n, stage in plan.stages.items() if n in plan.wanted}
        self._running: dict[Future[ProcessEnd], _Running] = {}
        self._failures: list[str] = []
        summaries.summary.stages = {
            name: summaries.summary.stage(name) for name in plan.stages
        }  # in the order of the file, and without stages that it no longer has

    def run(self) -> None:
        """Run every wanted stage that is not finished."""
        if not self.redo_changed:
            self._require_unchanged()
        for name in self._waiting:  # states of the last run, such as "blocked", are over
            state: State = "finished" if self._is_done(name) else "waiting"
            self._summaries.summary.stage(name).state = state
        started = monotonic()
        with ThreadPoolExecutor(max_workers=len(self._plan.stages)) as threads:
            try:
                self._run_all(threads.submit)
            finally:
                self._end_running()
                self._summaries.summary.wall_s += monotonic() - started
                self._summaries.save()
        if self._stop.count:
            raise KeyboardInterrupt
        if self._failures:
            raise StageFailedError("\n".join(self._failures))

    def _run_all(self, submit: Callable[[Callable[[], ProcessEnd]], Future[ProcessEnd]]) -> None:
        while (self._waiting or self._running) and not self._stop.count:
            for stage in self._startable():
                if running := self._start(stage):
                    self._running[submit(running.process.wait)] = running
            if self._running:
                self._collect_ended()

    def _startable(self) -> Iterator[Stage]:
        """Stages in the order of the file that may start now; each is handed out once."""
        for stage in list(self._waiting.values()):
            states = {self._summaries.summary.stage(need).state for need in stage.needs}
            if states & {"failed", "blocked"}:
                del self._waiting[stage.name]
                self._set(stage.name, "blocked")
            elif all(need not in self._waiting for need in stage.needs) and states <= {"finished"}:
                used = sum(running.stage.slots for running in self._running.values())
                if used + stage.slots <= self._plan.slots:
                    del self._waiting[stage.name]
                    yield stage

    def _start(self, stage: Stage) -> _Running | None:
        """Start a stage's process; None if it is finished already, or cannot be started."""
        summary = self._summaries.summary.stage(stage.name)
        fingerprint = self._hashes.fingerprint(stage)
        if found := self._changes(stage, fingerprint):
            if not self.redo_changed:
                self._fail(stage, self._changed(stage, found))
                return None
            self._move_aside(stage)
        elif self._is_done(stage.name):
            self._set(stage.name, "finished", note="not run again")
            return None
        log = self._plan.log(stage)
        summary.command, summary.log = stage.shown_command, str(log)
        summary.starts += 1
        summary.started_at, summary.ended_at = datetime.now(UTC), None
        summary.exit_status = summary.made_of = None
        summary.started_of = fingerprint
        metrics_end = end_of_metrics(stage.output)
        process = StageProcess(stage.command, shown=stage.shown_command, log=log)
        self._set(stage.name, "running")
        return _Running(stage, process, fingerprint, metrics_end)

    def _is_done(self, name: str) -> bool:
        """True if the stage finished before, its output is still there and nothing is retried."""
        summary = self._summaries.summary.stage(name)
        if summary.made_of is None or (self.retry_failures and summary.failures > summary.differing):
            return False
        return self._plan.stages[name].output.is_dir()

    def _changes(self, stage: Stage, now: Fingerprint) -> list[str]:
        """Changes since the stage's output was finished, or since it was begun."""
        summary = self._summaries.summary.stage(stage.name)
        before = summary.made_of or summary.started_of
        return changes(before, now) if before and stage.output.is_dir() else []

    def _require_unchanged(self) -> None:
        """Refuse to run if stages that have an output, and whose inputs are complete, changed."""
        problems = []
        for stage in self._plan.order():
            if stage.output.is_dir() and all(self._is_done(need) for need in stage.needs):
                found = self._changes(stage, self._hashes.fingerprint(stage))
                problems += [self._changed(stage, found)] if found else []
        if problems:
            raise ConfigError("\n".join(problems))

    def _changed(self, stage: Stage, found: list[str]) -> str:
        """The refusal of a stage that has changed, with the remedy."""
        finished = self._summaries.summary.stage(stage.name).made_of is not None
        state = "has finished" if finished else "is unfinished"
        return (
            f"stage {stage.name} {state}, but since then {'; '.join(found)}; restore that, or run "
            f"it again with --redo-changed, which moves {stage.output} aside"
        )

    def _move_aside(self, stage: Stage) -> None:
        number = 1
        while (aside := stage.output.with_name(f"{stage.output.name}.replaced-{number}")).exists():
            number += 1
        stage.output.rename(aside)

    def _collect_ended(self) -> None:
        ended, _ = wait(self._running, timeout=_TICK_S, return_when=FIRST_COMPLETED)
        for future in ended:
            self._ended(self._running.pop(future), future.result())

    def _ended(self, running: _Running, end: ProcessEnd) -> None:
        stage = running.stage
        summary = self._summaries.summary.stage(stage.name)
        summary.wall_s += end.wall_s
        summary.cpu_s += end.cpu_s
        summary.exit_status = end.exit_status
        failures = failures_since(stage.output, running.metrics_end)
        summary.failures, summary.differing = len(failures), sum(failure.differs for failure in failures)
        summary.ended_at = datetime.now(UTC)
        if end.exit_status == 0:
            summary.made_of, summary.started_of = running.made_of, None
            self._set(stage.name, "finished")
        elif self._stop.count:
            self._set(stage.name, "interrupted")
        else:
            log = self._plan.log(stage)
            lines = "\n".join(f"  {line}" for line in last_lines(log, _SHOWN_LINES))
            self._fail(
                stage, f"stage {stage.name} ended with status {end.exit_status}; the last lines of {log}:\n{lines}"
            )

    def _fail(self, stage: Stage, message: str) -> None:
        self._failures.append(message)
        self._set(stage.name, "failed")

    def _set(self, name: str, state: State, *, note: str = "") -> None:
        summary = self._summaries.summary.stage(name)
        summary.state = state
        self._summaries.save()
        self._view.changed(self._plan.stages[name], summary, note)

    def _end_running(self) -> None:
        """Interrupt the stages that run, and kill those that do not end in time."""
        for running in self._running.values():
            running.process.interrupt()
        deadline = monotonic() + GRACE_S
        while self._running and monotonic() < deadline and self._stop.count < 2:
            self._collect_ended()
        for running in self._running.values():
            running.process.kill()
        while self._running:
            self._collect_ended()


def end_of_metrics(output: Path) -> int:
    """Length in bytes of the whole lines of a run folder's metrics; 0 without any."""
    metrics = RunFolder(output).metrics
    return metrics.read_bytes().rfind(b"\n") + 1 if metrics.is_file() else 0
