"""Recordings in a format that is named or shows in their first record, and their episodes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qnet.errors import ConfigError, RecordError
from qnet.support.operator_code import import_operator_module, raised_text
from training.recordings.episode import BadRecord, RecordedEpisode
from training.recordings.fields import Fields
from training.recordings.formats.files import files_of, told_of_file, values_of
from training.recordings.formats.layout import Layout
from training.recordings.formats.table import FORMATS
from training.recordings.json_stream import read_values
from training.recordings.json_window import OnBytes
from training.recordings.otel import read_spans
from training.recordings.places import value_at


@dataclass(frozen=True, slots=True)
class Recording:
    """Files in one format.

    Attributes:
        format: its name in `FORMATS`, or an import path.
    """

    format: str
    layout: Layout
    paths: tuple[Path, ...]


def recording_of(source: Path, format_: str | None = None) -> Recording:
    """A file or a folder, read in the format that is named, else in that of its first record.

    Raises:
        ConfigError: there is no file, no such format, or none that fits.
    """
    if format_:
        layout = _layout_named(format_)
        return Recording(format_, layout, tuple(files_of(source, layout)))
    paths = files_of(source)
    name = detect_format(paths)
    layout = FORMATS[name]
    return Recording(name, layout, tuple(files_of(source, layout) if layout.files else paths))


def _layout_named(name: str) -> Layout:
    """A format of the table, or the operator's own, named by its import path.

    That is a `Layout`, or a function that turns a record into plain ones.
    """
    if name in FORMATS:
        return FORMATS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(
            f"{name!r} is no format; choose one of {', '.join(FORMATS)}, or name your own as "
            "package.module:name"
        )
    try:
        found = getattr(import_operator_module(module), attribute, None)
    except Exception as error:
        raise ConfigError(f"{module} cannot be imported: {raised_text(error)}") from error
    if isinstance(found, Layout):
        return found
    if not callable(found):
        raise ConfigError(f"{name} is neither a Layout nor a function; see docs/bring/data.md")
    return Layout(translate=found)


def detect_format(paths: Sequence[Path]) -> str:
    """The format of the first record that can be read.

    Raises:
        ConfigError: it is that of none, or of several formats.
    """
    for path in paths:
        for value in read_values(path):
            if not value.flaw:
                return _format_of(value.value, path, value.line)
    raise ConfigError(f"{paths[0]} holds no JSON; name another source")


def _format_of(record: object, path: Path, line: int) -> str:
    """The format of which a record shows the most marks."""
    shown = {name: _shown_marks(record, layout) for name, layout in FORMATS.items()}
    most = max(shown.values())
    found = [name for name, count in shown.items() if most and count == most]
    if len(found) == 1:
        return found[0]
    which = f"of several formats ({', '.join(found)})" if found else "of no format that is known"
    raise ConfigError(
        f"{path.name}, line {line} is {which}: choose one with --format "
        f"({', '.join(FORMATS)}), or say where its messages lie with --messages-key"
    )


def _shown_marks(record: object, layout: Layout) -> int:
    """Number of places of the longest mark that a record shows whole."""
    marks = [mark.split() for mark in layout.marks]
    whole = [mark for mark in marks if all(value_at(record, part) is not None for part in mark)]
    return max(map(len, whole), default=0)


def read_episodes(
    recording: Recording, fields: Fields, *, on_bytes: OnBytes = lambda count: None
) -> Iterator[RecordedEpisode | BadRecord]:
    """The episodes of a recording, and the records that hold none.

    Raises:
        ConfigError: the options do not suit the format.
        RecordError: a file cannot be read.
    """
    if recording.format == "otel":
        return read_spans(recording.paths, fields, on_bytes=on_bytes)
    return _read(recording, fields, on_bytes)


def _read(
    recording: Recording, fields: Fields, on_bytes: OnBytes
) -> Iterator[RecordedEpisode | BadRecord]:
    layout = recording.layout
    for path in recording.paths:
        for value in values_of(path, layout, on_bytes):
            try:
                if value.flaw:
                    raise RecordError(value.flaw)
                if not isinstance(value.value, dict):
                    raise RecordError("it is not a JSON object")
                record = told_of_file(value.value, value, path, layout)
                yield from list(layout.episodes(record, fields))
            except RecordError as error:
                yield BadRecord(path, value.line, str(error))
