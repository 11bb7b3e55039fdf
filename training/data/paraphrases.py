"""Paraphrases of tasks, as `qguide paraphrase` writes them and `evaluate` reads them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from qguide.qnet.errors import ConfigError
from qguide.training.data.runs import read_rows, rows_path

Paraphrases = Mapping[str, tuple[str, ...]]
"""By a task's id, its description in other words."""


class ParaphraseRow(BaseModel):
    """One task's description in other words.

    Attributes:
        task: its own words.
        texts: paraphrases, each another text than `task`.
        source: name of the model that wrote them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    task_id: str
    kind: str = ""
    task: str = Field(min_length=1)
    texts: tuple[str, ...] = Field(min_length=1)
    source: str


def read_paraphrases(path: Path, task_ids: Iterable[str]) -> Paraphrases:
    """The paraphrases of the tasks of a run.

    Args:
        path: a run folder of `paraphrase`, or its rows.
        task_ids: of the tasks that need them.
    """
    texts = {row.task_id: row.texts for row in read_rows(rows_path(path), ParaphraseRow)}
    missing = [task_id for task_id in task_ids if task_id not in texts]
    if missing:
        raise ConfigError(
            f"{path} has no paraphrase of {len(missing)} tasks, such as {missing[0]}; run "
            "`qguide paraphrase` on the same tasks, or leave out the methods that end in -aug"
        )
    return texts
