"""`make docs`: build the documentation into .site/; fails on a broken link or anchor."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_NOT_SEARCHED: Final = "---\nsearch:\n  exclude: true\n---\n\n"
_PAGES: Final = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def stage(folder: Path) -> None:
    """Copy pages and images to `folder`/build/docs, with the paths they have in the repository."""
    staged = folder / "build" / "docs"
    shutil.rmtree(staged, ignore_errors=True)
    shutil.copytree(ROOT / "docs", staged / "docs")
    (staged / "results").mkdir()
    pictures = [*(ROOT / "results").glob("*.png"), *(ROOT / "results").glob("*.gif")]
    for path in [*(ROOT / name for name in _PAGES), *pictures]:
        shutil.copy(path, staged / path.relative_to(ROOT))
    # Hundreds of schemas, whose names would come before the pages that explain them.
    openapi = staged / "docs" / "reference" / "openapi.md"
    openapi.write_text(_NOT_SEARCHED + openapi.read_text(encoding="utf-8"), encoding="utf-8")


def build(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Build the site of `folder`, which holds zensical.toml and the staged pages."""
    shutil.rmtree(folder / ".site", ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)


def main() -> None:
    """Build the site of this repository.

    Raises:
        SystemExit: a link is broken; its place has been printed.
    """
    stage(ROOT)
    done = build(ROOT)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
