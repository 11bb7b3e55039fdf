"""Episodes that the server recorded (`QGUIDE_EPISODES_DIR`): rows of trees with a single path."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pydantic import ValidationError

from qguide.qnet.errors import RecordError
from qguide.qnet.records import TreeRow
from qguide.training.data.trajectories import Trajectory, trajectories_of
from qguide.training.recordings.fields import Fields, flaw_of, stated_task


def read_tree_record(record: Mapping[str, object], fields: Fields) -> Iterator[Trajectory]:
    """The episodes of a tree, one per leaf; none if it is of an episode that is not asked for."""
    if fields.episodes and record.get("episode") not in fields.episodes:
        return
    if record.get("version") == 1:
        raise RecordError(
            "it is a tree of version 1; stop the server that writes to this file, and run `qguide "
            "convert-records PATH`, which keeps every tree"
        )
    try:
        row = TreeRow.model_validate(_of_the_row(record))
    except ValidationError as error:
        raise RecordError(flaw_of(error)) from error
    if not row.nodes:
        raise RecordError("it has no actions")
    task_id = stated_task(record, *(fields.tasks or ("task_id",))) or row.task_id
    for found in trajectories_of(row):
        yield replace(found, task_id=task_id)


def _of_the_row(record: Mapping[str, object]) -> dict[str, object]:
    """A record without what it was told of its file."""
    return {name: value for name, value in record.items() if not name.startswith("@")}
