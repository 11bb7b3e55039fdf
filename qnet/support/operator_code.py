"""Other people's code: by its import path, or by a name that an installed package gives it."""

import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from qguide.qnet.errors import ConfigError

Kind = Literal["environments", "formats", "jobs", "labels", "scorers"]
"""Kinds of things that a package may bring, as entry points of the group `qguide.KIND`."""


def import_operator_module(name: str) -> ModuleType:
    """Import a module that is installed or lies in the current folder.

    A console script does not search the current folder by itself. It comes last, so that no file
    there hides an installed module.

    Raises:
        ImportError: there is no such module, or it cannot be imported.
    """
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    return import_module(name)


def import_named(path: str) -> Any:
    """The object that `package.module:name` names.

    Raises:
        ImportError: see `import_operator_module`.
        AttributeError: the module has no such name.
    """
    module, _, name = path.partition(":")
    return getattr(import_operator_module(module), name)


def plugins(kind: Kind) -> Mapping[str, str]:
    """Import path of each name that installed packages bring; nothing is imported.

    Raises:
        ConfigError: two packages give one name to different things.
    """
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
