"""Modules of the operator's own code, named by their import path."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType


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
