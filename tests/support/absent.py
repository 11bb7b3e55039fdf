"""A Python program as it runs where some packages are not installed."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN_S = 120

_PRELUDE = """
import sys
from importlib.machinery import PathFinder

class Finder:
    find_distributions = PathFinder.find_distributions
    invalidate_caches = PathFinder.invalidate_caches

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
sys.argv = {argv!r}
"""
"""Hides the packages from the finder of installed ones, as if they were not there."""


def command_without(absent: Sequence[str], program: str, *arguments: str) -> list[str]:
    """The command of a program that cannot import these packages."""
    prelude = _PRELUDE.format(absent=set(absent), argv=["program", *arguments])
    return [sys.executable, "-c", f"{prelude}\n{program}"]


def run_without(absent: Sequence[str], program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The program's result."""
    return subprocess.run(
        command_without(absent, program, *arguments),
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
