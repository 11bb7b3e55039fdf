"""Export records of the jobs to the formats of other trainers and tools.

    qguide export-data runs/imported/trajectories --format trl-sft --output sft.jsonl

    format           reads                        writes
    trl-sft          episodes, paths of trees     messages
    trl-preference   preference pairs             prompt, chosen, rejected
    trl-stepwise     labels, decision groups      prompt, completions, labels
    atif             episodes, paths of trees     Harbor's trajectories, one per line
    parquet          any row of a job             its fields as columns

TRL's formats are written as JSON lines, or as parquet to an output that ends with .parquet. The
file appears when everything is written.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, FiniteFloat
from rich.progress import track

from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.records import Row, TreeRow
from qguide.training.data.decision_groups import GroupLabels, holds_groups
from qguide.training.data.parquet import PARQUET, write_parquet
from qguide.training.data.preferences import PreferenceRow
from qguide.training.data.records import labelled_tree
from qguide.training.data.row_files import address_of, lines_of, new_file, remedy_of, row_files, write_lines
from qguide.training.data.runs import read_rows
from qguide.training.data.trajectories import Trajectory, read_trajectories
from qguide.training.exports.atif import AtifRow, atif_row
from qguide.training.exports.trl import (
    ConversationPair,
    ConversationRow,
    StepwiseRow,
    conversation_pair,
    conversation_row,
    stepwise_of_groups,
    stepwise_of_labels,
)
from qguide.training.options import JobOptions

ExportFormat = Literal["trl-sft", "trl-preference", "trl-stepwise", "atif", "parquet"]


KINDS: Final[dict[str, type[Row]]] = {"chosen_value": PreferenceRow, "nodes": TreeRow}
"""The field that only rows of this kind have."""


def row_kind(source: Path) -> type[Row]:
    """The kind of the rows of a source, by its first one."""
    path = row_files(source)[0]
    if not address_of(path) and not path.is_file():
        raise ConfigError(f"{path} does not exist; name a run folder or its rows, such as runs/imported/trees")
    _, first = next(lines_of(path, BaseModel), (0, b""))
    if not first.strip():
        raise ConfigError(f"{path} is empty; name another run folder")
    try:
        fields = json.loads(first)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}, line 1: it is not JSON; name another run folder") from error
    if not isinstance(fields, dict):
        fields = {}
    for field, kind in KINDS.items():
        if field in fields:
            return kind
    remedy = remedy_of(first) if fields.get("version") == 1 else ""
    raise RecordError(f"{path}, line 1: it is of no kind that a job writes; name another file{remedy}")


class ExportConfig(JobOptions):
    """Configuration of `qguide export-data`.

    Attributes:
        source: a run folder, or a file or folder of rows, here or at an address.
        output: the file to write, here or at an address such as s3://bucket/rows.parquet; it must
            not exist.
        format: format of the file.
        min_reward: lowest reward of an episode to export; for `trl-sft` and `atif` only.
        threshold: lowest value of a step that counts as good; for `trl-stepwise` only.
        group_labels: how the values of decision groups are computed; for `trl-stepwise` only.

    An option that the format would ignore is refused.
    """

    source: Path
    output: Path
    format: ExportFormat
    min_reward: FiniteFloat | None = None
    threshold: FiniteFloat = 0.5
    group_labels: GroupLabels = GroupLabels()


def run_export_data(config: ExportConfig) -> dict[str, object]:
    """Write the file; returns its figures."""
    kind = row_kind(config.source)
    _refuse_unused_options(config, kind)
    written_kind, rows = _exported(config, kind)
    as_parquet = config.format == "parquet" or config.output.suffix == PARQUET
    with new_file(config.output) as file:
        shown = track(rows, "export-data", transient=True)
        write = write_parquet if as_parquet else write_lines
        count = write(file, written_kind, shown)
        if not count:
            raise ConfigError(f"{config.source} has no row to export; name another source, or lower min_reward")
    return {"rows": count, "from": kind.__name__, "output": str(config.output)}


def _refuse_unused_options(config: ExportConfig, kind: type[Row]) -> None:
    for option, formats in _FORMATS_OF_OPTION.items():
        if option in config.model_fields_set and config.format not in formats:
            named = " and ".join(formats)
            raise ConfigError(
                f"{option} is for {named} only, and {config.format} would ignore it; leave it "
                f"out, or choose {formats[0]}"
            )
    if "group_labels" in config.model_fields_set and not (kind is TreeRow and holds_groups(config.source)):
        raise ConfigError(
            f"group_labels is for decision groups, but the source holds rows of the kind "
            f"{kind.__name__}; leave it out, or name the output of `qguide groups`"
        )


def _exported(config: ExportConfig, kind: type[Row]) -> tuple[type[Row], Iterable[Row]]:
    path = config.source
    match config.format, kind:
        case "parquet", _:
            return kind, read_rows(path, kind)
        case "trl-sft", _ if kind is TreeRow:
            return ConversationRow, map(conversation_row, _trajectories(config, path))
        case "atif", _ if kind is TreeRow:
            return AtifRow, map(atif_row, _trajectories(config, path))
        case "trl-preference", _ if kind is PreferenceRow:
            return ConversationPair, map(conversation_pair, read_rows(path, PreferenceRow))
        case "trl-stepwise", _ if kind is TreeRow:
            return StepwiseRow, _stepwise(config, path)
    expected, job = _READS[config.format]
    raise ConfigError(
        f"{path} holds rows of the kind {kind.__name__}, but {config.format} reads {expected}; name the output of {job}"
    )


_FORMATS_OF_OPTION: Final = {
    "min_reward": ("trl-sft", "atif"),
    "threshold": ("trl-stepwise",),
    "group_labels": ("trl-stepwise",),
}
_READS = {
    "trl-sft": ("episodes", "`qguide import` or `qguide collect`"),
    "atif": ("episodes", "`qguide import` or `qguide collect`"),
    "trl-preference": ("preference pairs", "`qguide pairs`"),
    "trl-stepwise": ("labels or decision groups", "`qguide label` or `qguide groups`"),
}


def _trajectories(config: ExportConfig, path: Path) -> Iterator[Trajectory]:
    for found in read_trajectories(path):
        if config.min_reward is None or found.reward >= config.min_reward:
            yield found


def _stepwise(config: ExportConfig, path: Path) -> Iterator[StepwiseRow]:
    for row in read_rows(path, TreeRow):
        if row.is_decided:
            yield from stepwise_of_groups(row, config.group_labels, threshold=config.threshold)
        else:
            yield from stepwise_of_labels(labelled_tree(row), threshold=config.threshold)
