"""The protocol of connections extends private classes of uvicorn, whose versions are bounded."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_the_tests_ran_with_the_newest_version_that_is_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [bounds] = [one for one in project["dependencies"] if one.startswith("uvicorn")]
    bound = re.fullmatch(r"uvicorn>=[\d.]+,<0\.(\d+)", bounds)
    assert bound, f"{bounds} has no upper bound; server/http/protocol.py needs one"
    newest = f"0.{int(bound[1]) - 1}."
    assert version("uvicorn").startswith(newest), (
        f"run tests/e2e/test_hostile_connections.py with uvicorn {newest}* before allowing it"
    )
    assert f"\nuvicorn=={newest}" in (ROOT / "constraints.txt").read_text()
