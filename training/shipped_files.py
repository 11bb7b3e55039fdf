"""Files that come with the package: job files, pipelines, and the lists of tasks that they name."""

import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

_PACKAGE: Final = Path(__file__).parent
CONFIGS: Final = _PACKAGE / "configs"
"""Folder of the job files."""


def shipped_path(path: Path) -> Path:
    """The path itself, or the package's file of that place in the repository if nothing is there.

    So `training/configs/errands/pipeline.toml` is found in any working directory.
    """
    if path.parts[:1] != (CONFIGS.parent.name,) or path.exists():
        return path
    shipped = _PACKAGE.joinpath(*path.parts[1:])
    return shipped if shipped.exists() else path


def job_files(below: Path) -> list[Path]:
    """The job files at or below a path, in the order of their names."""
    return [below] if below.is_file() else sorted(below.rglob("*.toml"))


def headline(text: str) -> str:
    """The first sentence of the comment that a job file begins with; empty without one."""
    comment = takewhile(lambda line: line.startswith("#"), text.splitlines())
    words = " ".join(line.removeprefix("#").strip() for line in comment)
    return re.split(r"(?<=\.)\s|\bqguide ", words, maxsplit=1)[0].strip()


def named_files(file: Path, tables: Mapping[str, Any]) -> Iterator[Path]:
    """The files that a job file or pipeline needs beside it."""
    if base := tables.get("extends"):
        yield file.parent / base
    for stage in tables.get("stages", {}).values():
        if config := stage.get("config"):
            yield from file.parent.glob(re.sub(r"\{\w+\}", "*", config))
