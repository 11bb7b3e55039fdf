"""Episodes as others record them, and their import."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qguide.qnet.records import TreeRow
from qguide.training.data.runs import read_rows
from qguide.training.jobs.import_episodes import ImportConfig, run_import
from qguide.training.recordings.report import ImportReport

SYSTEM = {"role": "system", "content": "You find things."}


def calling(name: str, place: str, thought: str = "") -> dict[str, Any]:
    """A reply that calls a tool."""
    function = {"name": name, "arguments": json.dumps({"place": place})}
    return {
        "role": "assistant",
        "content": thought or None,
        "tool_calls": [{"id": f"{name}-{place}", "type": "function", "function": function}],
    }


def result(name: str, place: str, text: str) -> dict[str, Any]:
    """Its result."""
    return {"role": "tool", "tool_call_id": f"{name}-{place}", "content": text}


def episode(*turns: Mapping[str, Any], reward: float, task: str = "mug") -> dict[str, Any]:
    """A row of messages."""
    asked = {"role": "user", "content": f"Find the {task}."}
    return {"messages": [SYSTEM, asked, *turns], "reward": reward, "task_id": task}


def opened(asked: str, reply: str, *, task: str) -> dict[str, Any]:
    """An episode of one action after this first message."""
    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": reply}]
    return {"messages": turns, "reward": 1.0, "task_id": task}


DESK = (calling("look", "desk", "First."), result("look", "desk", "A mug."))
DESK_AGAIN = (calling("look", "desk", "Other words."), result("look", "desk", "A mug."))
SHELF = (calling("look", "shelf"), result("look", "shelf", "Nothing."))
DONE = {"role": "assistant", "content": "It is on the desk."}
GIVE_UP = {"role": "assistant", "content": "I give up."}


def write(folder: Path, rows: Sequence[object]) -> Path:
    """A file of these rows."""
    path = folder / "episodes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def imported(folder: Path, rows: Sequence[object], **options: Any) -> ImportReport:
    """The report of an import of these rows into `folder`/out."""
    return run_import(ImportConfig(source=write(folder, rows), output=folder / "out", **options))


def trees(folder: Path) -> list[TreeRow]:
    """The imported trees."""
    return list(read_rows(folder / "out" / "trees" / "rows.jsonl", TreeRow))
