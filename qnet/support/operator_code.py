"""Modules of the operator's own code, named by their import path."""

import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


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


def raised_text(error: BaseException) -> str:
    """An exception of somebody's code as a line: its type, its message, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
