"""Recorded episodes of LLMs on InterCode-SQL's tasks: one JSON object per line, maybe compressed.

{"run": "…", "model": "…", "schema_shown": true, "task_id": 3, "db": "orchestra",
 "turns": [{"action": "SELECT …", "observation": "[…]", "reward": 1.0, "valid": true}, …]}
"""

import lzma
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from qguide.qnet.errors import RecordError
from qguide.qnet.records import NonEmpty, Reward


class RecordedTurn(BaseModel):
    """One action, what MySQL answered, and the reward of ending there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: str
    observation: str
    reward: Reward
    valid: bool


class RecordedEpisode(BaseModel):
    """One run of a model on a task.

    Attributes:
        run: name of the run: the model and how it was asked.
        schema_shown: the model was told tables and columns.
        task_id: number of the task in its database's list.
        db: the database.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: NonEmpty
    model: NonEmpty
    schema_shown: bool
    task_id: int
    db: NonEmpty
    turns: tuple[RecordedTurn, ...]


def read_recorded(path: Path) -> Iterator[RecordedEpisode]:
    """The episodes of a file, plain or, by its ending .xz, compressed."""
    if not path.is_file():
        raise RecordError(f"{path} does not exist; name a file of recorded episodes")
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield RecordedEpisode.model_validate_json(line)
            except ValidationError as error:
                first = error.errors()[0]
                place = ".".join(map(str, first["loc"])) or "the line"
                raise RecordError(
                    f"{path}, line {number}: {place}: {first['msg']}; name a file of recorded InterCode-SQL episodes"
                ) from error
