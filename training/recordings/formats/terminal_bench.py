"""Trials of Terminal-Bench: prompts and answers lie in files beside the result."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from qguide.qnet.errors import RecordError
from qguide.training.recordings import json_window
from qguide.training.recordings.formats.layout import Record
from qguide.training.recordings.json_stream import Value, read_values
from qguide.training.recordings.json_window import OnBytes

_LOGS: Final = "agent-logs"
_EPISODES: Final = "episode-*"


def read_trials(path: Path, on_bytes: OnBytes) -> Iterator[Value]:
    """The trial of a `results.json`; that of a whole run only repeats its trials."""
    for value in read_values(path, on_bytes=on_bytes):
        row = value.value
        if isinstance(row, dict) and "trial_name" not in row:
            continue
        yield Value(value.line, row, value.flaw, {"@logs": path.parent / _LOGS})


def trial_records(record: Record) -> Iterator[Record]:
    """A trial whose agent left prompts and answers that can be read, as Terminus does."""
    logs: Path = record["@logs"]
    folders = sorted(logs.glob(_EPISODES), key=lambda folder: int(folder.name.rpartition("-")[2]))
    turns: list[Record] = []
    for folder in folders:
        asked, answered = _text(folder / "prompt.txt"), _text(folder / "response.txt")
        if asked and answered:
            turns.append({"role": "user", "content": asked})
            turns.append({"role": "assistant", "content": answered})
    if not turns:
        raise RecordError(
            f"it has no {_LOGS}/{_EPISODES}/response.txt; its agent left no such logs"
        )
    yield {
        "messages": turns,
        "reward": None if record["is_resolved"] is None else float(record["is_resolved"]),
        "task_id": record["task_id"],
        "terminated": record.get("failure_mode") != "agent_timeout",
    }


def _text(path: Path) -> str:
    """A file's text; "" if it is not there."""
    if not path.is_file():
        return ""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(json_window.MOST_BYTES)
