"""`python tools/released_version.py v0.2.0` fails unless all packages have that version."""

import json
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def versions() -> dict[str, str]:
    """Version of each package by the file that says it."""
    server = "pyproject.toml"
    python = "clients/python/src/qguide_client/version.py"
    typescript = "clients/typescript/package.json"
    found = re.search(r'VERSION\b.*?= "(.+?)"', (ROOT / python).read_text())
    if found is None:
        raise SystemExit(f"{python} has no VERSION")
    return {
        server: tomllib.loads((ROOT / server).read_text())["project"]["version"],
        python: found[1],
        typescript: json.loads((ROOT / typescript).read_text())["version"],
    }


def main(tag: str) -> None:
    """Compare them with the tag.

    Raises:
        SystemExit: one of them differs.
    """
    wrong = [
        f"{path} has {version}" for path, version in versions().items() if f"v{version}" != tag
    ]
    if wrong:
        raise SystemExit(f"the tag is {tag}, but {', '.join(wrong)}; change the version or the tag")


if __name__ == "__main__":
    main(sys.argv[1])
