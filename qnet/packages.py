"""Installed packages: those that only an extra brings, and the code of others, by its import path or a name.

A plain `pip install .` leaves out what the extras bring.
"""

import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

from qguide.qnet.errors import ConfigError

Kind = Literal["environments", "formats", "jobs", "labels", "methods", "scorers"]
"""Kinds of things that a package may bring, as entry points of the group `qguide.KIND`."""
LEARN: Final = "learn"
REMOTE: Final = "remote"
MODELS: Final = "models"
REPORT: Final = "report"
MCP: Final = "mcp"
TRAIN: Final = "train"

PACKAGES: Final = {
    LEARN: frozenset({"numpy", "safetensors", "scipy"}),
    REMOTE: frozenset({"huggingface_hub", "jinja2", "numpy", "safetensors", "tokenizers", "transformers"}),
    MODELS: frozenset({"torch"}),
    REPORT: frozenset({"jinja2", "matplotlib"}),
    MCP: frozenset({"mcp"}),
    TRAIN: frozenset({"accelerate", "bm25s", "peft", "rapidfuzz"}),
}
"""Packages of each extra itself: `models` and `report` bring those of `learn`, `train` all."""


def install(extra: str) -> str:
    """The command that installs an extra; no package is published, so it runs in a clone."""
    return f"pip install '.[{extra}]' in your clone of QGuide"


def left_out(error: ModuleNotFoundError) -> str | None:
    """The missing package if an extra brings it; None for any other."""
    package = (error.name or "").partition(".")[0]
    return package if any(package in packages for packages in PACKAGES.values()) else None


@contextmanager
def extra_named(need: str, extra: str, *, otherwise: str = "") -> Iterator[None]:
    """Name the extra to install, between `need` and `otherwise`, where an import fails for the lack of it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = left_out(error)
        if package is None:
            raise
        raise ConfigError(_missing(need, package, extra) + otherwise) from error


def require_extra(need: str, extra: str) -> None:
    """Raise a `ConfigError` for what would find a package of an extra missing only later."""
    for package in sorted(PACKAGES[extra]):
        if find_spec(package) is None:
            raise ConfigError(_missing(need, package, extra))


def _missing(need: str, package: str, extra: str) -> str:
    return f"{need} needs {package}, which is not installed; {install(extra)}"


def import_operator_module(name: str) -> ModuleType:
    """Import a module that is installed or lies in the current folder.

    A console script does not search the current folder by itself. It comes last, so that no file
    there hides an installed module.
    """
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    return import_module(name)


def import_named(path: str) -> Any:
    """The object that `package.module:name` names."""
    module, _, name = path.partition(":")
    return getattr(import_operator_module(module), name)


def plugins(kind: Kind) -> Mapping[str, str]:
    """Import path of each name that installed packages bring; nothing is imported."""
    found: dict[str, str] = {}
    for point in entry_points(group=f"qguide.{kind}"):
        if found.setdefault(point.name, point.value) != point.value:
            raise ConfigError(
                f"two installed packages bring {point.name!r} as qguide.{kind}: "
                f"{found[point.name]} and {point.value}; uninstall one of them"
            )
    return found


def paths_by_name(kind: Kind, own: Mapping[str, str]) -> dict[str, str]:
    """Import path of each name: ours, which no package can hide, and those of `plugins`."""
    return {**own, **{name: path for name, path in plugins(kind).items() if name not in own}}


def raised_text(error: BaseException) -> str:
    """An exception of somebody's code as a line: its type, its message, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
