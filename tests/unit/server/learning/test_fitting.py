"""Fits: what they learn from, and which versions are kept."""

import sys
from pathlib import Path

import pytest

from qguide.qnet.records import NodeRow, TreeRow
from qguide.server.learning.fitting import KEPT_VERSIONS, Fitter
from qguide.server.learning.lines import EpisodeLine, PhaseLine
from qguide.server.learning.progress import Progress
from qguide.server.settings.learning import Rules

OTHER = TreeRow(
    task_id="b",
    kind="served",
    environment="served",
    first_observation="Find the mug.",
    nodes=(
        NodeRow(id=1, parent=0, depth=1, action="look", observation="", reward=1.0, terminated=True, source="agent"),
    ),
    draws=1,
    episode="b",
)


def fitter(folder: Path, *, memory_mb: int = 1024) -> Fitter:
    return Fitter(folder, cpu_s=60, memory_bytes=memory_mb * 1024**2)


def test_no_episodes_are_not_all_episodes(tmp_path: Path) -> None:
    """A rollback after all of them leaves none, while the folder has those of other keys, too."""
    progress = Progress(Rules())
    progress.apply(EpisodeLine(episode="a", outcome=1, arm=None))
    back = PhaseLine(event="rolled_back", phase="collecting", trial=1, since=1, reason="harms", at=0)
    progress.apply(back)
    assert progress.newest() == ()
    assert fitter(tmp_path).fit(tmp_path, progress) is None
    assert not (tmp_path / "versions").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux alone")
@pytest.mark.parametrize(
    "memory_mb",
    [pytest.param(64, id="to start", marks=pytest.mark.slow), pytest.param(256, id="to load its libraries")],
)
def test_a_fit_without_enough_memory_says_so(tmp_path: Path, memory_mb: int) -> None:
    progress = Progress(Rules())
    progress.apply(EpisodeLine(episode="a", outcome=1, arm=None))
    line = fitter(tmp_path, memory_mb=memory_mb).fit(tmp_path, progress)
    assert line is not None
    assert line.failed
    said = f"the fit failed: it needs more than {memory_mb} MiB of memory (QGUIDE_LEARN_MEMORY_MB)"
    assert line.reason == said


@pytest.mark.parametrize("others", [False, True], ids=["no file", "others are left"])
def test_a_fit_whose_episodes_were_all_deleted_says_so(tmp_path: Path, others: bool) -> None:
    if others:
        (tmp_path / "trees-1.jsonl").write_text(OTHER.model_dump_json() + "\n")
    progress = Progress(Rules())
    progress.apply(EpisodeLine(episode="a", outcome=1, arm=None))
    line = fitter(tmp_path).fit(tmp_path, progress)
    assert line is not None
    assert line.failed
    assert "none of its episodes is recorded any more" in line.reason


def test_the_version_that_may_guide_is_kept(tmp_path: Path) -> None:
    for number in range(1, KEPT_VERSIONS + 4):
        (tmp_path / "versions" / str(number)).mkdir(parents=True)
    fitter(tmp_path).forget_old(tmp_path, keep={1})
    kept = {int(path.name) for path in (tmp_path / "versions").iterdir()}
    assert kept == {1, *range(4, KEPT_VERSIONS + 4)}
