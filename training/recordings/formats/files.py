"""The files of a recording, and what each record is told of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from qnet.errors import ConfigError, RecordError
from training.recordings.formats.layout import Layout, Record
from training.recordings.json_stream import COMPRESSED, Value, read_values
from training.recordings.json_window import OnBytes

_JSON: Final = (".json", ".jsonl")
_ENDS: Final = (*COMPRESSED, *_JSON, ".traj", ".eval")


def files_of(source: Path, layout: Layout | None = None) -> list[Path]:
    """The files of a source: itself, or those below a folder in the order of their names.

    In a folder of the server's recordings these are the trees; its offers hold no episodes.

    Raises:
        ConfigError: there are none.
    """
    if source.is_dir():
        patterns = layout.files if layout else ()
        found = {path for pattern in patterns for path in source.glob(f"**/{pattern}")}
        if not patterns:
            found = {path for path in source.glob("**/*") if _is_json(path)}
        shown = [path for path in found if not _is_hidden(path.relative_to(source))]
        if not shown:
            wanted = " or ".join(patterns) or ".jsonl or .json"
            raise ConfigError(f"{source} holds no {wanted} file; name a file")
        return sorted(path for path in shown if path.is_file())
    if not source.is_file():
        raise ConfigError(f"{source} does not exist; name a file or a folder")
    return [source]


def values_of(path: Path, layout: Layout, on_bytes: OnBytes) -> Iterator[Value]:
    """The records of a file.

    Raises:
        RecordError: the file cannot be read.
    """
    if layout.values:
        return layout.values(path, on_bytes)
    return read_values(path, within=layout.within, keeping=layout.keeping, on_bytes=on_bytes)


def told_of_file(record: Record, value: Value, path: Path, layout: Layout) -> Record:
    """A record with `@file`, `@folder` and what stands around and beside it.

    Raises:
        RecordError: the file beside it cannot be read.
    """
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
    return name.endswith(_JSON) and not name.startswith("offers-")


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _stem(path: Path) -> str:
    """A file's name without the ends that say its format."""
    name = path.name
    while end := next((end for end in _ENDS if name.endswith(end)), ""):
        name = name.removesuffix(end)
    return name
