"""Formats of recordings: their detection, and the episodes of their files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, get_args

from qnet.errors import ConfigError, RecordError
from training.recordings.episode import BadRecord, RecordedEpisode
from training.recordings.fields import Fields
from training.recordings.json_stream import OnBytes, read_values
from training.recordings.openai_messages import read_message_record
from training.recordings.otel import read_spans
from training.recordings.served import read_tree_record
from training.recordings.sharegpt import read_sharegpt_record

Format = Literal["served", "messages", "sharegpt", "otel"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)

_MARKS: Final[Mapping[Format, tuple[str, ...]]] = {
    "served": ("nodes",),
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "otel": ("resourceSpans", "resourceLogs"),
}
"""Fields by which a record shows its format."""


def files_of(source: Path) -> list[Path]:
    """The files of a source: itself, or those of a folder in the order of their names.

    In a folder of the server's recordings these are the trees; its offers hold no episodes.

    Raises:
        ConfigError: there are none.
    """
    if source.is_dir():
        found = sorted(p for p in source.iterdir() if p.suffix in (".json", ".jsonl"))
        found = [p for p in found if not p.name.startswith("offers-")]
        if not found:
            raise ConfigError(f"{source} holds no .jsonl or .json file; name a file")
        return found
    if not source.is_file():
        raise ConfigError(f"{source} does not exist; name a file or a folder")
    return [source]


def detect_format(paths: Sequence[Path]) -> Format:
    """The format of the first record that can be read.

    Raises:
        ConfigError: it is that of none, or of several formats.
    """
    for path in paths:
        for value in read_values(path):
            if not value.flaw:
                return _format_of(value.value, path, value.line)
    raise ConfigError(f"{paths[0]} holds no JSON; name another source")


def _format_of(record: object, path: Path, line: int) -> Format:
    fields = set(record) if isinstance(record, Mapping) else set()
    found = [name for name, marks in _MARKS.items() if fields & set(marks)]
    if len(found) == 1:
        return found[0]
    marks = ", ".join(f"{' or '.join(marks)} ({name})" for name, marks in _MARKS.items())
    which = f"of several formats ({', '.join(found)})" if found else "of no format that is known"
    raise ConfigError(
        f"{path.name}, line {line} is {which}; the fields are {marks}: choose with --format"
    )


def read_episodes(
    paths: Sequence[Path],
    format_: Format,
    fields: Fields,
    *,
    on_bytes: OnBytes = lambda count: None,
) -> Iterator[RecordedEpisode | BadRecord]:
    """The episodes of these files, and the records that hold none.

    Raises:
        ConfigError: the options do not suit the format.
        RecordError: a file cannot be read.
    """
    match format_:
        case "otel":
            return read_spans(paths, fields, on_bytes=on_bytes)
        case "served":
            return _read(paths, fields, read_tree_record, on_bytes)
        case "messages":
            return _read(paths, fields, _one(read_message_record), on_bytes)
        case "sharegpt":
            return _read(paths, fields, _one(read_sharegpt_record), on_bytes)


_Reader = Callable[[Mapping[str, object], Fields], Iterator[RecordedEpisode]]


def _one(read: Callable[[Mapping[str, object], Fields], RecordedEpisode]) -> _Reader:
    return lambda record, fields: iter([read(record, fields)])


def _read(
    paths: Sequence[Path], fields: Fields, read: _Reader, on_bytes: OnBytes
) -> Iterator[RecordedEpisode | BadRecord]:
    for path in paths:
        for value in read_values(path, on_bytes=on_bytes):
            try:
                if value.flaw:
                    raise RecordError(value.flaw)
                if not isinstance(value.value, Mapping):
                    raise RecordError("it is not a JSON object")
                yield from list(read(value.value, fields))
            except RecordError as error:
                yield BadRecord(path, value.line, str(error))
