"""Inspect's `.eval` logs: a zip with a header and one JSON file per sample."""

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from qguide.qnet.errors import RecordError
from qguide.training.recordings import json_stream
from qguide.training.recordings.json_stream import OnBytes, Value, parse_bytes, read_values

_HEADERS: Final = ("header.json", "_journal/start.json")
_KEPT: Final = ("eval",)
_UNREADABLE: Final = (
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,  # another compression
    RuntimeError,  # it is encrypted
)


def read_samples(path: Path, on_bytes: OnBytes) -> Iterator[Value]:
    """The samples of a log, which may also be in Inspect's JSON format."""
    if not zipfile.is_zipfile(path):
        yield from read_values(path, within="samples", keeping=_KEPT, on_bytes=on_bytes)
        return
    try:
        with zipfile.ZipFile(path) as log:
            names = [info.filename for info in log.infolist()]
            header = next((name for name in _HEADERS if name in names), "")
            around = _header(_member(log, header)) if header else {}
            for name in names:
                if name.startswith("samples/") and name.endswith(".json"):
                    yield _sample(log, name, around)
    except _UNREADABLE as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    on_bytes(path.stat().st_size)


def _sample(log: zipfile.ZipFile, name: str, around: dict[str, Any]) -> Value:
    found = _member(log, name)
    flaw = f"{name}: {found.flaw}" if found.flaw else ""
    return Value(1, found.value, flaw, around)


def _member(log: zipfile.ZipFile, name: str) -> Value:
    """One file of the log; one that unpacks to more than a value may hold is not unpacked."""
    with log.open(name) as file:
        text = file.read(json_stream.MOST_BYTES + 1)
    if len(text) > json_stream.MOST_BYTES:
        return Value(1, flaw=f"it has more than {json_stream.MOST_BYTES:,} bytes")
    return parse_bytes(text)


def _header(found: Value) -> dict[str, Any]:
    header = found.value if isinstance(found.value, dict) else {}
    return {name: header[name] for name in _KEPT if name in header}
