"""Failures of a stage's job: the tasks that it could not play, by its metrics.

A job that plays exits with 0 unless all tasks failed. A start of it tries every task that has no
row, so the failures of the last start are those that are left.
"""

import json
from pathlib import Path

from qguide.training.data.runs import RunFolder


def end_of_metrics(output: Path) -> int:
    """Length in bytes of the whole lines of a run folder's metrics; 0 without any."""
    metrics = RunFolder(output).metrics
    return metrics.read_bytes().rfind(b"\n") + 1 if metrics.is_file() else 0


def failures_since(output: Path, start: int) -> int:
    """Number of failures in a run folder's metrics, from a byte on.

    The harness writes {"task_id": …, "error": …} for a task, `evaluate` for an episode.
    """
    metrics = RunFolder(output).metrics
    if not metrics.is_file():
        return 0
    return sum(_is_failure(line) for line in metrics.read_bytes()[start:].splitlines())


def _is_failure(line: bytes) -> bool:
    try:
        row = json.loads(line)
    except ValueError:  # a last line that a kill cut short
        return False
    return isinstance(row, dict) and row.keys() >= {"task_id", "error"}
