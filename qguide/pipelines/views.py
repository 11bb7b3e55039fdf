"""Progress of a pipeline in the terminal, its plan, and its end: the table of times, and what became of Q models."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from qguide.pipelines.plan import Plan, Stage
from qguide.pipelines.stage_process import failures_since, last_lines
from qguide.pipelines.summary import StageSummary, Summary
from qguide.qnet.models.manifest import MANIFEST, Manifest
from qguide.training.data.runs import RunFolder

_BESIDE: Final = ", with --policy or --upstream for your agent's model"
"""Without them the embedded policy is served, which only the embedded Q model is meant for."""
_COLOURS: Final = {
    "waiting": "dim",
    "running": "cyan",
    "finished": "green",
    "failed": "red",
    "interrupted": "yellow",
    "blocked": "dim",
}
_NOTE_WIDTH: Final = 60


class LiveTable:
    """A table of all stages that is drawn anew while they run."""

    def __init__(self, plan: Plan, summary: Summary) -> None:
        self._plan = plan
        self._summary = summary
        self._notes: dict[str, str] = {}

    def changed(self, stage: Stage, summary: StageSummary, note: str = "") -> None:
        """Keep the note; the table itself reads the summary when it is drawn."""
        self._notes[stage.name] = note

    def __rich__(self) -> Table:
        """The table of this moment."""
        table = Table("stage", "job", "state", "time", "last said")
        for stage in self._plan.stages.values():
            summary = self._summary.stage(stage.name)
            colour = _COLOURS[summary.state]
            table.add_row(
                stage.name,
                stage.job,
                f"[{colour}]{summary.state}[/{colour}]",
                _duration(_elapsed_s(summary)),
                escape(self._note(stage, summary)),
            )
        return table

    def _note(self, stage: Stage, summary: StageSummary) -> str:
        if summary.state != "running":
            return ", ".join(filter(None, (self._notes.get(stage.name), _failures(summary))))
        (last,) = last_lines(self._plan.log(stage), 1) or [""]
        if last.startswith("$ "):  # only its command so far; a trainer says more in its metrics
            (last,) = last_lines(RunFolder(stage.output).metrics, 1) or [""]
        return last[:_NOTE_WIDTH]


class PlainLines:
    """One line for each change of a stage's state, for logs and pipes."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan = plan
        self._console = console

    def changed(self, stage: Stage, summary: StageSummary, note: str = "") -> None:
        """Print the stage's new state."""
        if note:
            text = note
        elif summary.state == "running":
            text = f"log {self._plan.log(stage)}"
        elif summary.exit_status is not None and summary.ended_at is not None:
            text = f"{_duration(summary.wall_s)}, CPU {_duration(summary.cpu_s)}"
        else:
            text = ""
        if summary.state != "running":
            text = ", ".join(filter(None, (text, _failures(summary))))
        now = datetime.now(UTC).strftime("%H:%M:%S")
        self._console.print(
            f"{now} {stage.name} {summary.state}" + (f" ({text})" if text else ""),
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


@contextmanager
def shown_progress(plan: Plan, summary: Summary, console: Console) -> Iterator[LiveTable | PlainLines]:
    """A table that is drawn anew in a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield PlainLines(plan, console)
        return
    table = LiveTable(plan, summary)
    with Live(table, console=console, refresh_per_second=2):
        yield table


def print_plan(plan: Plan, summary: Summary, console: Console) -> None:
    """Print what would be run, each stage after those that it needs."""
    count = f"{len(plan.wanted)} of {len(plan.stages)} stages"
    if len(plan.wanted) == len(plan.stages):
        count = f"{len(plan.stages)} stages"
    lines = [f"{count}, {plan.slots} slots, logs and summary in {plan.output}"]
    for stage in plan.order():
        kept = summary.stage(stage.name)
        done = kept.made_of is not None and stage.output.is_dir()
        lines += [
            "",
            f"{stage.name}: {stage.shown_command}",
            f"  needs   {', '.join(stage.needs) or 'no stage'}",
            f"  reads   {', '.join(read.named for read in stage.reads) or 'no files'}",
            f"  writes  {stage.output}",
            f"  slots   {stage.slots}",
            *([f"  has finished  {_failures(kept)}".rstrip()] if done else []),
        ]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def print_times(plan: Plan, summary: Summary, console: Console) -> None:
    """Print the time of each stage, over all of its starts, and which have failures."""
    table = Table("stage", "state", "starts", "failures", "wall", "CPU")
    remedies = []
    for name in plan.stages:
        stage = summary.stage(name)
        times = (_duration(stage.wall_s), _duration(stage.cpu_s))
        table.add_row(name, stage.state, str(stage.starts), str(stage.failures), *times)
        if stage.failures and stage.state == "finished":
            output = plan.stages[name].output
            last = "".join(f", the last one {failure.text}" for failure in failures_since(output, 0)[-1:])
            again = "--retry-failures tries them again"
            if stage.failures == stage.differing:
                again = "to try them again would leave to luck which tasks are played"
            remedies.append(f"stage {name} has {_failures(stage)}, named in {RunFolder(output).metrics}{last}; {again}")
    table.add_section()
    table.add_row("all", "", "", "", _duration(summary.wall_s), _duration(summary.cpu_s))
    console.print(table)
    for remedy in remedies:
        console.print(remedy, markup=False, highlight=False, soft_wrap=True)


def print_verdicts(plan: Plan, summary: Summary, console: Console) -> None:
    """Print for each Q model that the pipeline made whether its licence lets it guide, its gain, and what to do next.

    One from which a later stage made another, as `choose` does, is not a result, unless it has a licence where that
    other was refused one.
    """
    made = {stage.name: RunFolder(stage.output).checkpoint for stage in plan.order()}
    found = {
        name: manifest
        for name, folder in made.items()
        if summary.stage(name).state == "finished" and (manifest := _q_model_in(folder))
    }
    used = {read.path for name in found for read in plan.stages[name].reads}
    refused = any(_granted(one) is False for name, one in found.items() if made[name] not in used)
    for name, manifest in found.items():
        if (folder := made[name]) not in used or (refused and _granted(manifest)):
            verdict = f"{name}: the Q model {manifest.name} {_verdict(manifest, folder)}"
            console.print(verdict, markup=False, highlight=False, soft_wrap=True)


def _granted(manifest: Manifest) -> bool | None:
    """None if it was not judged."""
    return None if manifest.licence is None else manifest.licence.granted


def _q_model_in(folder: Path) -> Manifest | None:
    """Its manifest, without the hashes of its weights, which are verified where they are read."""
    path = folder / MANIFEST
    with suppress(OSError, ValidationError):
        manifest = Manifest.model_validate_json(path.read_bytes())
        return None if manifest.kind == "policy" else manifest
    return None


def _verdict(manifest: Manifest, folder: Path) -> str:
    """Its licence with the gain, and what to do next."""
    named = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    serve = shlex.join(("qguide", "serve", "--scorer", str(named)))
    if manifest.licence is None:
        return f"{manifest.remark}. It guides all the same: {serve}{_BESIDE}"
    if manifest.licence.granted:
        return f"has a licence: {manifest.licence.reason}. Next: {serve}{_BESIDE}"
    more = "train on more data, or serve it all the same"
    return f"{manifest.remark}. Next: {more}: {serve} --unlicensed{_BESIDE}"


def _failures(summary: StageSummary) -> str:
    """Number of failures in words; "" without any."""
    count = summary.failures
    return f"{count} failure{'s' if count > 1 else ''}" if count else ""


def _elapsed_s(summary: StageSummary) -> float:
    if summary.state != "running" or summary.started_at is None:
        return summary.wall_s
    return summary.wall_s + (datetime.now(UTC) - summary.started_at).total_seconds()


def _duration(seconds: float) -> str:
    """Hours, minutes and seconds; tenths below a minute."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
