"""Recorded episodes of LLMs on InterCode-SQL's tasks: of a clone of princeton-nlp/intercode, or of a file.

The file, maybe compressed, has one JSON object per line:

{"run": "…", "model": "…", "schema_shown": true, "task_id": 3, "db": "orchestra",
 "turns": [{"action": "SELECT …", "observation": "[…]", "reward": 1.0, "valid": true}, …]}
"""

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from qguide.qnet.errors import RecordError
from qguide.qnet.records import NonEmpty, Reward
from qguide.training.recordings.json_stream import read_values

TASKS: Final = "data/sql/spider/ic_spider_dev.json"
RESULTS: Final = "data/results/sql"
"""Files of a clone."""


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
    """The episodes of a clone, or of a file that is plain or, by its ending .xz, compressed."""
    if (path / TASKS).is_file():
        yield from _of_clone(path)
        return
    if not path.is_file():
        raise RecordError(
            f"{path} is no file and has no {TASKS}; name a clone of princeton-nlp/intercode, or a file of episodes"
        )
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


def _of_clone(clone: Path) -> Iterator[RecordedEpisode]:
    """The results of InterCode's own runs; runs that plan first are left out, because they act in other words."""
    databases = [task["db"] for task in json.loads((clone / TASKS).read_text(encoding="utf-8"))]
    for path in sorted((clone / RESULTS).glob("*/*.json")):
        for found in read_values(path, within="*"):
            record: Any = found.value
            if "turn_history" not in record:
                break
            history = record["turn_history"]
            parts = (history[name] for name in ("actions", "observations", "rewards", "valid_action"))
            yield RecordedEpisode(
                run=path.stem,
                model=path.parent.name,
                schema_shown="handicap" in path.stem,
                task_id=record["task_id"],
                db=databases[record["task_id"]],
                turns=tuple(
                    RecordedTurn(action=action, observation=str(seen), reward=reward, valid=valid)
                    for action, seen, reward, valid in zip(*parts, strict=False)  # a blocked action has no observation
                ),
            )
