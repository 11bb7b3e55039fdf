"""Version check for releases: `python tools/released_version.py v0.2.0`.

It fails unless all packages have the version of the tag.
"""

import json
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def versions() -> dict[str, str]:
    """The version in each file that states one."""
    server = "pyproject.toml"
    python = "clients/python/src/qguide_client/version.py"
    typescript = "clients/typescript/package.json"
    citation = "CITATION.cff"
    return {
        server: tomllib.loads((ROOT / server).read_text())["project"]["version"],
        python: _found(python, r'VERSION\b.*?= "(.+?)"'),
        typescript: json.loads((ROOT / typescript).read_text())["version"],
        citation: _found(citation, r"^version: (.+)$"),
    }


def _found(path: str, pattern: str) -> str:
    found = re.search(pattern, (ROOT / path).read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{path} has no version; it must match {pattern!r}")
    return found[1]


def main(tag: str) -> None:
    """Compare all versions with the tag.

    Raises:
        SystemExit: a version differs.
    """
    wrong = [f"{path} has {version}" for path, version in versions().items() if f"v{version}" != tag]
    if wrong:
        raise SystemExit(f"the tag is {tag}, but {', '.join(wrong)}; change the version or the tag")


if __name__ == "__main__":
    main(sys.argv[1])
