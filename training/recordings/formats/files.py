"""The files of a recording, and what each record is told of its own."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from qguide.qnet.errors import ConfigError, RecordError
from qguide.training.recordings.formats.layout import Layout, Record
from qguide.training.recordings.json_stream import COMPRESSED, Value, read_values
from qguide.training.recordings.json_window import OnBytes

_JSON: Final = (".json", ".jsonl")
_OTHERS: Final = (".traj", ".eval")
_ENDS: Final = (*COMPRESSED, *_JSON, *_OTHERS)


def files_of(source: Path, patterns: Sequence[str] = ()) -> list[Path]:
    """The files of a source: itself, or those below a folder in the order of their names.

    In a folder of the server's recordings these are the trees; its offers hold no episodes.
    """
    if source.is_dir():
        below = [
            path
            for path in sorted(source.glob("**/*"))
            if path.is_file() and not _is_hidden(path, source)
        ]
        named = [path for path in below if any(path.match(pattern) for pattern in patterns)]
        if not (found := named or [path for path in below if _is_json(path)]):
            raise ConfigError(f"{source} holds no .jsonl or .json file; name a file")
        return found
    if not source.is_file():
        raise ConfigError(f"{source} does not exist; name a file or a folder")
    return [source]


def values_of(path: Path, layout: Layout, on_bytes: OnBytes) -> Iterator[Value]:
    """The records of a file."""
    if layout.values:
        return layout.values(path, on_bytes)
    return read_values(path, within=layout.within, keeping=layout.keeping, on_bytes=on_bytes)


def told_of_file(record: Record, value: Value, path: Path, layout: Layout) -> Record:
    """A record with `@file`, `@folder` and what stands around and beside it."""
    told: dict[str, Any] = {"@file": _stem(path), "@folder": path.parent.name, **value.around}
    if layout.beside and (beside := path.parent / layout.beside).is_file():
        first = next(read_values(beside), None)
        if first is None or first.flaw:
            raise RecordError(f"{layout.beside} is not JSON that can be read")
        told["@beside"] = first.value
    return {**record, **told}


def _is_json(path: Path) -> bool:
    name = path.name
    for end in COMPRESSED:
        name = name.removesuffix(end)
    return name.endswith((*_JSON, *_OTHERS)) and not name.startswith("offers-")


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _stem(path: Path) -> str:
    """A file's name without the ends that say its format."""
    name = path.name
    while end := next((end for end in _ENDS if name.endswith(end)), ""):
        name = name.removesuffix(end)
    return name
