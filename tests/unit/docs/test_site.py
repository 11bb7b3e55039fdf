"""The site builds, and a broken link or anchor fails the build."""

import re
import shutil
from pathlib import Path

import pytest

from tests.support.serving import ROOT
from tools.build_site import build, stage

pytestmark = pytest.mark.server


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    stage(tmp_path)
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in ("index.html", "docs/start.html", "docs/reference/settings.html"):
        assert (tmp_path / ".site" / page).exists()


@pytest.mark.parametrize(
    ("link", "fault"),
    [("nowhere.md", "page does not exist"), ("start.md#nowhere", "anchor does not exist"), ("start.md#here", "")],
)
def test_a_broken_link_fails_the_build_and_is_named(link: str, fault: str, tmp_path: Path) -> None:
    """With the site's options, on two pages of its own: the whole site takes thirty times as long."""
    pages = tmp_path / "build" / "docs"
    pages.mkdir(parents=True)
    (pages / "index.md").write_text(f"# Home\n\n[away]({link})\n")
    (pages / "start.md").write_text("# Start\n\n## Here\n")
    options = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    (tmp_path / "zensical.toml").write_text(re.sub(r"^nav = \[.*?^\]$", "", options, flags=re.M | re.S))
    done = build(tmp_path)
    assert (done.returncode == 0) == (fault == "")
    assert fault in done.stderr
