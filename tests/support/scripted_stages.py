"""Stages of pipelines that are scripts, run in the current folder."""

import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console

from qguide.pipelines.plan import Plan, Read, Stage
from qguide.pipelines.runner import PipelineRunner, StopSignals
from qguide.pipelines.summary import Summary, SummaryFile, locked_folder
from qguide.pipelines.views import PlainLines

MOST_S = 60
PRELUDE = f"""
import pathlib, sys, time
def wait_for(name):
    for _ in range({MOST_S * 50}):
        if pathlib.Path(name).exists():
            return
        time.sleep(0.02)
    sys.exit(f"{{name}} never came")
def note(text):
    with open("events", "a") as file:
        file.write(text + "\\n")
def write(name, text=""):
    pathlib.Path(name).parent.mkdir(exist_ok=True, parents=True)
    pathlib.Path(name).write_text(text)
"""


class Job(BaseModel):
    value: int = 0


def stage(name: str, script: str, *, needs: Sequence[str] = (), slots: int = 1, value: int = 0) -> Stage:
    """A stage that runs a Python script, and reads the folders of the stages that it needs."""
    return Stage(
        name=name,
        job="script",
        config=Job(value=value),
        arguments=(),
        reads=tuple(Read("reads", need) for need in needs),
        output=Path(name).resolve(),
        needs=tuple(needs),
        slots=slots,
        program=(sys.executable, "-c", PRELUDE + script),
    )


def plan_of(*stages: Stage, slots: int = 2, wanted: Iterable[str] | None = None) -> Plan:
    by_name = {one.name: one for one in stages}
    return Plan(Path("pipeline"), slots, by_name, frozenset(by_name if wanted is None else wanted))


def run(plan: Plan, **options: bool) -> str:
    """Run a plan; returns the lines that it printed."""
    told = io.StringIO()
    view = PlainLines(plan, Console(file=told, width=200))
    with locked_folder(plan.output), StopSignals() as stop:
        summaries = SummaryFile(plan.output)
        PipelineRunner(plan, summaries, view=view, stop=stop, **options).run()
    return told.getvalue()


def summary() -> Summary:
    return Summary.model_validate_json(Path("pipeline/summary.json").read_bytes())


def states() -> dict[str, str]:
    return {name: one.state for name, one in summary().stages.items()}


def events() -> list[str]:
    return Path("events").read_text().splitlines()


def finished(name: str, text: str = "") -> str:
    """A script that notes that it ran and writes its output."""
    return f"note({name!r}); write('{name}/rows', {text!r})"
