"""Recorded episodes, read row by row from the `offers-*.jsonl` of a server."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from qguide.qnet.errors import RecordError
from qguide.qnet.records import OfferRow
from qguide.training.data.records import recorded_once
from qguide.training.guidance_report.columns import OF

OFFERS: Final = "offers-*.jsonl"
TREES: Final = "trees-*.jsonl"
_LABEL_LENGTH: Final = 60
_NO_SYSTEM: Final = "no system message"

OnBadRow = Callable[[RecordError], None]
"""Takes note of a row that cannot be read, or raises."""


def offer_files(paths: Sequence[Path]) -> list[Path]:
    """The files that the paths name: files, or folders with `offers-*.jsonl`."""
    found: list[Path] = []
    for path in paths:
        files = sorted(path.glob(OFFERS)) if path.is_dir() else [path]
        if not files or not all(file.is_file() for file in files):
            raise RecordError(
                f"{path} has no {OFFERS}; name the folder that QGUIDE_EPISODES_DIR names, or one of these files"
            )
        found += files
    return found


def read_episodes(files: Iterable[Path], on_bad_row: OnBadRow) -> Iterator[list[OfferRow]]:
    """The steps of each episode; only one episode is in memory at a time.

    The server writes the steps of an episode one after another, so it ends where the depth does not
    rise; of one that was written again, the first are read, but for those that a kill may have cut.
    Rows of before have no episode id; there a change of the task or of the outcome ends it, too.
    """
    return recorded_once(_grouped(files, on_bad_row), lambda steps: steps[0].episode)


def _grouped(files: Iterable[Path], on_bad_row: OnBadRow) -> Iterator[list[OfferRow]]:
    """All episodes of the files, at last those that a file ends with, of which a kill may have left the beginning."""
    last: list[list[OfferRow]] = []
    for file in files:
        steps: list[OfferRow] = []
        for row in _read_rows(file, on_bad_row):
            if steps and not _continues(steps[-1], row):
                yield steps
                steps = []
            steps.append(row)
        last.append(steps)
    yield from sorted(filter(None, last), key=len, reverse=True)


def environment_labels(paths: Sequence[Path]) -> dict[str, str]:
    """The environment of each task, from the trees beside the offers.

    A server knows no environment, so the first line of the system message stands for it.
    """
    labels: dict[str, str] = {}
    for path in paths:
        for file in sorted(path.glob(TREES)) if path.is_dir() else ():
            with file.open("rb") as lines:
                for line in lines:
                    if (label := _label(line)) is not None:
                        labels.setdefault(*label)
    return labels


def _read_rows(file: Path, on_bad_row: OnBadRow) -> Iterator[OfferRow]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield _of_one_learner(OfferRow.model_validate_json(line))
            except ValidationError as error:
                if not line.endswith(b"\n"):
                    return  # the server is writing this line, or was killed while it did
                first = error.errors()[0]
                place = ".".join(map(str, first["loc"])) or "the row"
                on_bad_row(
                    RecordError(
                        f"{file}, line {number}: {place}: {first['msg']}; correct or remove the "
                        "line, or leave such rows out with --skip-bad"
                    )
                )


def _of_one_learner(row: OfferRow) -> OfferRow:
    """The row under one name for all versions of a server that learns, each of which has few.

    The group stands behind the name; where the row has none, a label such as `7-1f0c66ab` has its hash.
    """
    if row.arm != "guided":
        return row
    name, _, label = row.q_model.partition("@")
    learner = f"{name}{OF}{row.group}" if row.group else "-".join([name, *label.split("-")[1:]])
    return row.model_copy(update={"q_model": learner})


def _continues(before: OfferRow, row: OfferRow) -> bool:
    same = (before.episode, before.task_id, before.outcome_reward) == (row.episode, row.task_id, row.outcome_reward)
    return same and row.depth > before.depth


def _label(line: bytes) -> tuple[str, str] | None:
    """Task id and label of a tree; None if the line is no tree, which is not this report's task."""
    try:
        row = json.loads(line)
        task_id, system, environment = row["task_id"], row["system"], row["environment"]
    except (ValueError, KeyError, TypeError):
        return None
    if environment != "served":
        return str(task_id), str(environment)
    lines = str(system or "").strip().splitlines()
    return str(task_id), lines[0][:_LABEL_LENGTH] if lines else _NO_SYSTEM
