"""The best known trajectory of each task, which trees merge and agents are compared with."""

from collections.abc import Sequence
from pathlib import Path

from qguide.training.data.records import TrajectoryRow
from qguide.training.data.runs import read_rows, rows_path


def best_trajectories(folders: Sequence[Path]) -> dict[str, TrajectoryRow]:
    """Each task's trajectory with the highest outcome; ties go to the first.

    Args:
        folders: run folders of `collect`, or rows files.
    """
    best: dict[str, TrajectoryRow] = {}
    for folder in folders:
        for row in read_rows(rows_path(folder), TrajectoryRow):
            known = best.get(row.task_id)
            if known is None or row.outcome_reward > known.outcome_reward:
                best[row.task_id] = row
    return best
