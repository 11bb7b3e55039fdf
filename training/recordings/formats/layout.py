"""The layout of a format: its files, and where an episode's parts lie or their translation."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from os.path import normpath
from pathlib import Path
from typing import Any, Final

from qguide.qnet.errors import ConfigError
from qguide.training.data.parquet import PARQUET
from qguide.training.data.row_files import address_of, found_below, is_file
from qguide.training.data.trajectories import Trajectory
from qguide.training.recordings.episode import MESSAGES, PLAIN, Places, read_message_record
from qguide.training.recordings.fields import Fields, translated
from qguide.training.recordings.json_stream import COMPRESSED, OnBytes, Value, read_values
from qguide.training.recordings.otel_spans import Fragment

Record = Mapping[str, Any]
Translate = Callable[[Record], Iterable[Record]]
"""A record as plain ones: messages, reward, task_id, source, terminated, left_out."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One format.

    Attributes:
        marks: places by which a record shows the format; of "a b" it has both.
        places: where the parts of an episode lie, if there is no translation.
        translate: turns a record into plain ones; None where its places are enough.
        read: reads a record that is no list of messages at all.
        files: patterns of the files of a folder; none takes every file of JSON.
        within: see `read_values`; "" if a file's values are its records.
        beside: file with the outcome, seen from the record's; its JSON is `@beside` of the record.
        fragments: reads requests to models, of which those of one trace are an episode.
    """

    marks: tuple[str, ...] = ()
    places: Places = MESSAGES
    translate: Translate | None = None
    read: Callable[[Record, Fields], Iterable[Trajectory]] | None = None
    files: tuple[str, ...] = ()
    within: str = ""
    keeping: tuple[str, ...] = ()
    beside: str = ""
    values: Callable[[Path, OnBytes], Iterator[Value]] | None = None
    fragments: Callable[[object], Iterator[Fragment]] | None = None

    def episodes(self, record: Record, fields: Fields) -> Iterator[Trajectory]:
        """The episodes of a record."""
        if self.read:
            yield from self.read(record, fields)
        elif self.translate is None:
            yield read_message_record(record, fields, self.places)
        else:
            for plain in translated(self.translate, record):
                yield read_message_record(plain, fields, PLAIN, told=record)


_JSON: Final = (".json", ".jsonl")
_OTHERS: Final = (".traj", ".eval")
_ENDS: Final = (*COMPRESSED, *_JSON, *_OTHERS, PARQUET)


_ABSENT: Final = "does not exist; name a file or a folder"


def files_of(source: Path, patterns: Sequence[str] = ()) -> list[Path]:
    """The files of a source: itself, or those below a folder in the order of their names.

    A name with `*` stands for all files and folders that are named so, but for hidden ones such as `.git`.
    In a folder of the server's recordings these are the trees; its offers, and what a server that
    learns keeps beside them, hold no episodes.
    """
    if is_file(source):
        return [source]
    if "*" in str(source) and not source.exists():
        start = Path(*takewhile(lambda part: "*" not in part, source.parts))
        every = found_below(start, str(source.relative_to(start)), folders=True)
        if not (named := [path for path in every if not _is_hidden(path, start)]):
            raise ConfigError(f"{address_of(source) or source} names no file or folder; change the name")
        return list(dict.fromkeys(path for one in named for path in files_of(one, patterns)))  # `**` names some twice
    below = [path for path in found_below(source) if not _is_hidden(path, source)]
    named = [path for path in below if any(path.match(pattern) for pattern in patterns)]
    found = named or [path for path in below if _is_json(path) and not _is_of_learner(path)]
    if not (found := found or [path for path in below if path.suffix == PARQUET]):
        lack = "holds no .jsonl, .json or .parquet file; name a file" if below or source.is_dir() else _ABSENT
        raise ConfigError(f"{address_of(source) or source} {lack}")
    return found


def values_of(path: Path, layout: Layout, on_bytes: OnBytes) -> Iterator[Value]:
    """The records of a file, lines not parsed yet; around each is what its file tells of it."""
    if layout.values:
        found = layout.values(path, on_bytes)
    else:
        found = read_values(path, within=layout.within, keeping=layout.keeping, on_bytes=on_bytes, parses=False)
    return (_told_of_file(value, path, layout) for value in found)


def _told_of_file(value: Value, path: Path, layout: Layout) -> Value:
    """A record with the names of its file and folders, and what stands beside it."""
    folders = _folders_of(path)
    told: dict[str, Any] = {"@file": _stem(path), "@folder": folders[0], "@folders": folders, **value.around}
    if layout.beside and is_file(beside := path.parent / layout.beside):
        first = next(read_values(beside), None)
        if first is None or first.flaw:
            return replace(value, flaw=value.flaw or f"{layout.beside} is not JSON that can be read")
        told["@beside"] = first.value
    return replace(value, around=told)


@lru_cache(maxsize=1)
def _folders_of(path: Path) -> list[str]:
    """Names of the folders around a file, those of a link, whose target is called otherwise."""
    whole = path if address_of(path) else path.absolute()
    return [folder.name for folder in Path(normpath(whole)).parents]


def _is_json(path: Path) -> bool:
    name = path.name
    for end in COMPRESSED:
        name = name.removesuffix(end)
    return name.endswith((*_JSON, *_OTHERS)) and not name.startswith("offers-")


def _is_of_learner(path: Path) -> bool:
    return any(one.name == "learning" and found_below(one.parent, "trees-*.jsonl") for one in path.parents)


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _stem(path: Path) -> str:
    """A file's name without the ends that say its format."""
    name = path.name
    while end := next((end for end in _ENDS if name.endswith(end)), ""):
        name = name.removesuffix(end)
    return name
