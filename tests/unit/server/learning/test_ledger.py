"""The ledger of learning: what a crash, a full disk or a second writer does to it."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from qguide.server.episodes.learning_part import LearningArm, ShadowTally
from qguide.server.learning.group import Group
from qguide.server.learning.ledger import LEDGER, Ledger
from qguide.server.learning.lines import EpisodeLine, FitLine
from qguide.server.learning.service import LEARNING, check_learning
from qguide.server.settings.learning import Rules
from tests.support.full_disk import files_end_at
from tests.unit.server.learning.scripted_agent import settings_of

UNGUIDED = LearningArm(trial=0, guided=False, share=0.0)


def line(name: str, outcome: float = 1.0) -> EpisodeLine:
    """The end of an episode."""
    return EpisodeLine(episode=name, outcome=outcome, arm=UNGUIDED)


def in_shadow(version: int) -> EpisodeLine:
    """An episode in the shadow of a version."""
    tally = ShadowTally(version=version, decisions=20, room=20, disagreed=5)
    return EpisodeLine(episode=f"s{version}", outcome=1.0, arm=UNGUIDED, shadow=tally)


def written(ledger: Ledger, *names: str) -> None:
    """Append the ends of episodes."""
    with ledger.locked():
        list(ledger.new())
        for name in names:
            ledger.append(line(name))


def test_replicas_follow_each_other(tmp_path: Path) -> None:
    one, other = Ledger(tmp_path), Ledger(tmp_path)
    written(one, "a")
    assert list(other.new()) == [line("a")]
    written(other, "b")
    assert list(one.new()) == [line("b")]
    assert list(one.new()) == []


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_that_was_cut_short_is_not_read_and_the_next_writer_removes_it(tmp_path: Path, cut: int) -> None:
    written(Ledger(tmp_path), "a", "b")
    path = tmp_path / LEDGER
    path.write_bytes(path.read_bytes()[:-cut])

    reader = Ledger(tmp_path)
    assert list(reader.new()) == [line("a")]
    written(Ledger(tmp_path), "c")

    assert list(reader.new()) == [line("c")]
    assert list(Ledger(tmp_path).new()) == [line("a"), line("c")]


def test_lines_of_two_processes_are_all_there(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from qguide.server.learning.group import Group;"
        "from qguide.server.settings.learning import Rules;"
        "from qguide.server.learning.lines import EpisodeLine;"
        "group = Group('_', Path(sys.argv[1]), Rules());"
        "[group.end(EpisodeLine(episode=f'{sys.argv[2]}{i}', outcome=1, arm=None))"
        " for i in range(50)]"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), name]) for name in "ab"]
    assert [process.wait() for process in processes] == [0, 0]

    found = [one.episode for one in Ledger(tmp_path).new() if isinstance(one, EpisodeLine)]
    assert sorted(found) == sorted(f"{name}{i}" for name in "ab" for i in range(50))


def test_an_episode_counts_once_whoever_reports_it(tmp_path: Path) -> None:
    one, other = (Group("_", tmp_path, Rules()) for _ in range(2))
    one.end(line("a"))
    other.end(line("a"))
    one.end(line("a", 0.0))
    assert other.progress.episodes.count == 1
    assert len((tmp_path / LEDGER).read_text().splitlines()) == 1


def test_what_a_full_disk_refused_is_counted_later_and_nothing_is_half_written(tmp_path: Path) -> None:
    group = Group("_", tmp_path, Rules())
    group.end(line("a"))
    size = (tmp_path / LEDGER).stat().st_size
    with files_end_at(size + 10):
        group.end(line("b"))
        assert (tmp_path / LEDGER).stat().st_size == size
        assert group.progress.episodes.count == 1
    group.follow()
    assert group.progress.episodes.count == 2
    assert Group("_", tmp_path, Rules()).progress.episodes.count == 2


def test_a_recording_that_comes_late_is_learned_from_in_its_place(tmp_path: Path) -> None:
    group = Group("_", tmp_path, Rules())
    group.end(line("a"))
    group.end(line("b").model_copy(update={"recorded": False}))
    group.end(line("c"))
    assert group.progress.newest() == ("a", "c")
    for _ in range(2):
        group.end(line("b"))
    for found in (group.progress, Group("_", tmp_path, Rules()).progress):
        assert found.newest() == ("a", "b", "c")
        assert found.episodes.count == 3


def test_two_replicas_begin_one_trial(tmp_path: Path) -> None:
    one, other = (Group("_", tmp_path, Rules()) for _ in range(2))
    assert one.fitted(FitLine(version=1, episodes=0, licensed=True, reason="better")) == []
    assert [change.phase for change in one.end(in_shadow(1))] == ["trial"]
    assert [change.phase for change in other.end(line("a"))] == ["trial"]
    kinds = [one.kind for one in Ledger(tmp_path).new()]
    assert kinds == ["fit", "episode", "phase", "episode"]
    assert (len(one.own), len(other.own)) == (1, 0)


def test_a_restart_goes_on_where_the_last_line_ends(tmp_path: Path) -> None:
    group = Group("_", tmp_path, Rules())
    group.fitted(FitLine(version=3, episodes=0, licensed=True, reason="better"))
    group.end(in_shadow(3))
    again = Group("_", tmp_path, Rules())
    assert (again.progress.phase, again.progress.version) == ("trial", 3)
    assert again.end(line("a")) == []


def test_a_ledger_that_was_removed_begins_anew(tmp_path: Path) -> None:
    group = Group("_", tmp_path, Rules())
    group.end(line("a"))
    (tmp_path / LEDGER).unlink()
    group.end(line("b"))
    assert group.progress.episodes.count == 1
    assert [one.episode for one in Ledger(tmp_path).new() if isinstance(one, EpisodeLine)] == ["b"]


def test_only_one_process_fits(tmp_path: Path) -> None:
    one, other = (Group("_", tmp_path, Rules()) for _ in range(2))
    with one.learner() as first, other.learner() as second:
        assert (first, second) == (True, False)
    with other.learner() as mine:
        assert mine


def test_the_folders_that_a_start_makes_are_the_servers_users_alone(tmp_path: Path) -> None:
    folder = tmp_path / "served"
    check_learning(settings_of(folder, "http://127.0.0.1:9"))
    assert {stat.S_IMODE(made.stat().st_mode) for made in (folder, folder / LEARNING)} == {0o700}
