"""Tasks that a job left out because their replays differed, as its metrics and those of later jobs tell them.

    explore, groups ─▶ a failure's row in metrics.jsonl ─▶ label ─▶ train-qnet, choose, licence

Chance decides which tasks are left, so their outcomes are biased.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from qguide.training.data.row_files import address_of, is_json
from qguide.training.data.runs import RunFolder

DIFFER: Final = "replays_differ"
_OF: Final = "of_tasks"


class LeftOut(NamedTuple):
    """Number of tasks whose replays differed at least once, of these and all that were played to their ends."""

    tasks: int = 0
    of: int = 0

    def __str__(self) -> str:
        return f"{self.tasks:,} of {self.of:,} tasks failed because replays differ, and chance chose the others"

    @property
    def figures(self) -> dict[str, int]:
        """The fields of a row of metrics; the last row that has them counts."""
        return {DIFFER: self.tasks, _OF: self.of}


def left_out_of(sources: Iterable[Path]) -> LeftOut:
    """Tasks left out of run folders, or of files in them, all together."""
    folders = (source if source.is_dir() else source.parent for source in sources if not address_of(source))
    found = [_of_folder(folder) for folder in {folder.resolve() for folder in folders}]
    return LeftOut(sum(one.tasks for one in found), sum(one.of for one in found))


def _of_folder(folder: Path) -> LeftOut:
    metrics = RunFolder(folder).metrics
    if not metrics.is_file():
        return LeftOut()
    lines = metrics.read_bytes().splitlines()
    return left_out_in(json.loads(line) for line in lines if DIFFER.encode() in line and is_json(line))


def left_out_in(rows: Iterable[Mapping[str, Any]]) -> LeftOut:
    """The number that the rows of a run's metrics tell."""
    told = [row for row in rows if DIFFER in row]
    return LeftOut(told[-1][DIFFER], told[-1][_OF]) if told else LeftOut()
