"""The results of tests with clients of others, from which the page of clients is generated."""

import json
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.serving import ROOT

_RESULTS: Final = os.environ.get("CLIENTS_RESULTS", "")
_PINS: Final = ROOT / "tests" / "clients"
_rows = pytest.StashKey[list[dict[str, Any]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin with no result."""
    config.stash[_rows] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether a test with a client passed."""
    report = yield
    marker = item.get_closest_marker("client")
    if marker and report.when == "call":
        version = _pinned()[marker.kwargs["package"]]
        row = {**marker.kwargs, "version": version, "passed": report.passed}
        item.config.stash[_rows].append(row)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the results, where CLIENTS_RESULTS names a file."""
    rows = session.config.stash[_rows]
    if _RESULTS and rows:
        rows.sort(key=lambda row: (row["client"].lower(), row["does"]))
        Path(_RESULTS).write_text(json.dumps({"clients": rows}, indent=1) + "\n")


def _pinned() -> dict[str, str]:
    """The version of each package that `make test-clients` installs."""
    of_node: dict[str, str] = json.loads((_PINS / "package.json").read_text())["dependencies"]
    lines = "\n".join(path.read_text() for path in _PINS.glob("*.txt"))
    return of_node | dict(re.findall(r"^([a-z0-9-]+)(?:\[\S+\])?==(\S+)$", lines, re.MULTILINE))
