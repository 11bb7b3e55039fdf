"""Kinds of rows, told apart by their fields."""

import json
from pathlib import Path
from typing import Final

from qnet.errors import ConfigError, RecordError
from qnet.records import Row
from training.data.decision_groups import DecisionGroupsRow
from training.data.preferences import PreferenceRow
from training.data.records import LabelRow, SearchRow, TrajectoryRow

KINDS: Final[dict[str, type[Row]]] = {
    "outcome_reward": TrajectoryRow,
    "chosen_value": PreferenceRow,
    "q_values": LabelRow,
    "decisions": DecisionGroupsRow,
    "nodes": SearchRow,
}
"""The field that only rows of this kind have."""


def row_kind(path: Path) -> type[Row]:
    """The kind of the rows of a file, by its first one.

    Raises:
        ConfigError: the file is missing or empty.
        RecordError: its first row is of no kind that a job writes.
    """
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist; name a run folder or its rows, such as runs/imported/trees"
        )
    with path.open("rb") as file:
        first = file.readline()
    if not first.strip():
        raise ConfigError(f"{path} is empty; name another run folder")
    try:
        fields = json.loads(first)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}, line 1: it is not JSON; name another run folder") from error
    for field, kind in KINDS.items():
        if isinstance(fields, dict) and field in fields:
            return kind
    raise RecordError(f"{path}, line 1: it is of no kind that a job writes; name another file")
