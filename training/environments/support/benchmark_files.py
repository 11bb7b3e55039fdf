"""Files of a benchmark's tasks, read and checked."""

import lzma
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from qguide.qnet.errors import ConfigError

T = TypeVar("T")


def read_entries(path: Path, field: str, kind: TypeAdapter[T], wanted: str) -> T:
    """The entries of a JSON file, maybe compressed (.xz).

    Args:
        field: the field of `[environment]` that names the file.
        wanted: what the field has to name, for errors.
    """
    try:
        content = path.read_bytes()
        return kind.validate_json(lzma.decompress(content) if path.suffix == ".xz" else content)
    except OSError as error:
        raise ConfigError(f"{field} = {path}: {error.strerror}; name {wanted}") from error
    except lzma.LZMAError as error:
        raise ConfigError(f"{field} = {path}: {error}; name {wanted}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(f"{field} = {path}: {place}: {first['msg']}; name {wanted}") from error
