"""The line that clones the repository gives a folder in which the next one works."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.documents import blocks_of
from tests.support.serving import ROOT


def test_the_start_pages_clone_has_the_makefile_of_its_next_command(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("no repository here that could be cloned")
    (line,) = (b.text for b in blocks_of("docs/start.md") if b.text.startswith("git clone"))
    command = f"{line.replace('ADDRESS', str(ROOT), 1).partition('#')[0]}\nmake --dry-run serve"
    done = subprocess.run(["/bin/bash", "-euc", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "qguide serve" in done.stdout
