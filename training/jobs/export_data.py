"""Export records of the jobs to the formats of other trainers and tools.

    qguide export-data runs/imported/trajectories --format trl-sft --output sft.jsonl

    format           reads                        writes
    trl-sft          trajectories                 messages
    trl-preference   preference pairs             prompt, chosen, rejected
    trl-stepwise     labels, decision groups      prompt, completions, labels
    atif             trajectories                 Harbor's trajectories, one per line
    parquet          any row of a job             its fields as columns

TRL's formats are written as JSON lines, or as parquet to an output that ends with .parquet. The
file appears when everything is written.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, FiniteFloat
from rich.progress import track

from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.records import Row, TreeRow
from qguide.qnet.support.extras import install
from qguide.training.data.decision_groups import GroupLabels
from qguide.training.data.preferences import PreferenceRow
from qguide.training.data.records import TrajectoryRow, labelled_tree
from qguide.training.data.runs import JsonlWriter, read_rows, rows_path
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

ExportFormat = Literal["trl-sft", "trl-preference", "trl-stepwise", "atif", "parquet"]


KINDS: Final[dict[str, type[Row]]] = {
    "outcome_reward": TrajectoryRow,
    "chosen_value": PreferenceRow,
    "nodes": TreeRow,
}
"""The field that only rows of this kind have."""


def row_kind(path: Path) -> type[Row]:
    """The kind of the rows of a file, by its first one."""
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


class ExportConfig(BaseModel):
    """Configuration of `qguide export-data`.

    Attributes:
        source: a run folder, or its file of rows.
        output: the file to write; it must not exist.
        format: format of the file.
        min_reward: lowest reward of a trajectory to export; for `trl-sft` and `atif` only.
        threshold: lowest value of a step that counts as good; for `trl-stepwise` only.
        group_labels: how the values of decision groups are computed; for `trl-stepwise` only.

    An option that the format would ignore is refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Path
    output: Path
    format: ExportFormat
    min_reward: FiniteFloat | None = None
    threshold: FiniteFloat = 0.5
    group_labels: GroupLabels = GroupLabels()


def run_export_data(config: ExportConfig) -> dict[str, object]:
    """Write the file; returns its figures."""
    path = rows_path(config.source)
    kind = row_kind(path)
    _refuse_unused_options(config, kind)
    if config.output.exists():
        raise ConfigError(f"{config.output} exists; choose another output, or remove it")
    written_kind, rows = _exported(config, path, kind)
    config.output.parent.mkdir(parents=True, exist_ok=True)
    partial = config.output.with_name(config.output.name + ".partial")
    partial.unlink(missing_ok=True)
    shown = track(rows, "export-data", transient=True)
    if config.format == "parquet" or config.output.suffix == ".parquet":
        count = write_parquet(partial, written_kind, shown)
    else:
        count = _write_lines(partial, shown)
    if not count:
        partial.unlink()
        raise ConfigError(f"{path} has no row to export; name another source, or lower min_reward")
    partial.replace(config.output)
    return {"rows": count, "from": kind.__name__, "output": str(config.output)}


def _refuse_unused_options(config: ExportConfig, kind: type[Row]) -> None:
    for option, formats in _FORMATS_OF_OPTION.items():
        if option in config.model_fields_set and config.format not in formats:
            named = " and ".join(formats)
            raise ConfigError(
                f"{option} is for {named} only, and {config.format} would ignore it; leave it "
                f"out, or choose {formats[0]}"
            )
    if "group_labels" in config.model_fields_set and not _holds_groups(config, kind):
        raise ConfigError(
            f"group_labels is for decision groups, but the source holds rows of the kind "
            f"{kind.__name__}; leave it out, or name the output of `qguide groups`"
        )


def _holds_groups(config: ExportConfig, kind: type[Row]) -> bool:
    """True if the first row is an episode's decision groups."""
    return kind is TreeRow and any(
        row.is_decided for row in islice(read_rows(rows_path(config.source), TreeRow), 1)
    )


def _exported(config: ExportConfig, path: Path, kind: type[Row]) -> tuple[type[Row], Iterable[Row]]:
    """The kind of rows to write, and these rows."""
    match config.format, kind:
        case "parquet", _:
            return kind, read_rows(path, kind)
        case "trl-sft", _ if kind is TrajectoryRow:
            return ConversationRow, map(conversation_row, _trajectories(config, path))
        case "atif", _ if kind is TrajectoryRow:
            return AtifRow, map(atif_row, _trajectories(config, path))
        case "trl-preference", _ if kind is PreferenceRow:
            return ConversationPair, map(conversation_pair, read_rows(path, PreferenceRow))
        case "trl-stepwise", _ if kind is TreeRow:
            return StepwiseRow, _stepwise(config, path)
    expected, job = _READS[config.format]
    raise ConfigError(
        f"{path} holds rows of the kind {kind.__name__}, but {config.format} reads {expected}; "
        f"name the output of {job}"
    )


_FORMATS_OF_OPTION: Final = {
    "min_reward": ("trl-sft", "atif"),
    "threshold": ("trl-stepwise",),
    "group_labels": ("trl-stepwise",),
}
_READS = {
    "trl-sft": ("trajectories", "`qguide import` or `qguide collect`"),
    "atif": ("trajectories", "`qguide import` or `qguide collect`"),
    "trl-preference": ("preference pairs", "`qguide pairs`"),
    "trl-stepwise": ("labels or decision groups", "`qguide label` or `qguide groups`"),
}


def _trajectories(config: ExportConfig, path: Path) -> Iterator[TrajectoryRow]:
    for row in read_rows(path, TrajectoryRow):
        if config.min_reward is None or row.outcome_reward >= config.min_reward:
            yield row


def _stepwise(config: ExportConfig, path: Path) -> Iterator[StepwiseRow]:
    for row in read_rows(path, TreeRow):
        if row.is_decided:
            yield from stepwise_of_groups(row, config.group_labels, threshold=config.threshold)
        else:
            yield from stepwise_of_labels(labelled_tree(row), threshold=config.threshold)


def _write_lines(path: Path, rows: Iterable[Row]) -> int:
    count = 0
    with JsonlWriter(path) as writer:
        for row in rows:
            writer.write(row)
            count += 1
    return count


_ROWS_PER_GROUP = 1000


def write_parquet(path: Path, kind: type[BaseModel], rows: Iterable[BaseModel]) -> int:
    """Write rows of one kind; returns their number."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            f"parquet needs pyarrow, which is not installed; {install('parquet')}"
        ) from error
    schema = pyarrow.schema(_struct(kind))
    waiting, count = iter(rows), 0
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        while group := [_columns(row) for row in islice(waiting, _ROWS_PER_GROUP)]:
            writer.write_batch(pyarrow.RecordBatch.from_pylist(group, schema=schema))
            count += len(group)
    return count


def _columns(row: BaseModel) -> dict[str, object]:
    """The fields of a row; of a dictionary its names and values, because few tools read maps."""
    return {
        name: [{"name": key, "value": each} for key, each in value.items()]
        if get_origin(type(row).model_fields[name].annotation) is dict
        else value
        for name, value in row.model_dump().items()
    }


def _struct(kind: type[BaseModel]) -> Any:
    """The arrow struct of a model; a field that is not written becomes null."""
    import pyarrow

    return pyarrow.struct(
        [(name, _arrow_type(field.annotation)) for name, field in kind.model_fields.items()]
    )


def _arrow_type(annotation: Any) -> Any:
    import pyarrow

    plain: dict[Any, Any] = {str: pyarrow.string(), bool: pyarrow.bool_(), int: pyarrow.int64()}
    plain[float] = pyarrow.float64()
    if annotation in plain:
        return plain[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _arrow_type(arguments[0])
    if origin is Literal:
        return _arrow_type(type(arguments[0]))
    if origin in (Union, UnionType):
        types = {_arrow_type(argument) for argument in arguments if argument is not NoneType}
        (one,) = types  # a name of ours and a user's are both text
        return one
    if origin is dict:
        fields = zip(("name", "value"), map(_arrow_type, arguments), strict=True)
        return pyarrow.list_(pyarrow.struct(fields))
    if origin is tuple:
        return pyarrow.list_(_arrow_type(arguments[0]))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _struct(annotation)
    raise TypeError(f"no column for {annotation}")
