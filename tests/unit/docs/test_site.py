"""The site builds, and a broken link or anchor fails the build."""

import shutil
from pathlib import Path

import pytest

from tests.support.serving import ROOT
from tools.build_site import build, stage

pytestmark = pytest.mark.server


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the staged pages and the site's configuration."""
    stage(tmp_path)
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    return tmp_path


def test_the_site_builds(site: Path) -> None:
    done = build(site)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in ("index.html", "docs/start.html", "docs/reference/settings.html"):
        assert (site / ".site" / page).exists()


def test_broken_links_fail_the_build_and_are_named(site: Path) -> None:
    page = site / "build" / "docs" / "docs" / "connect" / "langchain.md"
    page.write_text(f"{page.read_text()}\n[away](../nowhere.md) [away](../start.md#nowhere)\n")
    done = build(site)
    assert done.returncode != 0
    for fault in ("page does not exist", "anchor does not exist"):
        assert fault in done.stderr
