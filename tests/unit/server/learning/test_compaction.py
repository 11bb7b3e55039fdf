"""A ledger that is replaced by its state: nothing is lost, whoever reads it, and whatever fails."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from qguide.server.episodes.learning_part import LearningArm, ShadowTally
from qguide.server.learning import group as groups
from qguide.server.learning import progress as states
from qguide.server.learning import tally as curves
from qguide.server.learning.group import Group
from qguide.server.learning.ledger import LEDGER
from qguide.server.learning.lines import EpisodeLine, FitLine, SilentLine, SpentLine
from qguide.server.learning.progress import state_in
from qguide.server.settings.learning import Rules
from tests.support.full_disk import files_end_at
from tests.unit.server.learning.test_ledger import line

RULES = Rules(every=10)


@pytest.fixture
def few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers are replaced after 20 lines."""
    monkeypatch.setattr(groups, "_MOST_LINES", 20)


def lived(folder: Path, *, episodes: int = 300) -> Group:
    """A group that has fitted, tried, guided and challenged, by the same draws each time."""
    group, chance = Group("_", folder, RULES, clock=lambda: 7.0), Random(0)
    for number in range(episodes):
        now = group.progress
        newer = chance.random() < now.challenger_share
        guided = newer or chance.random() < now.share
        arm = LearningArm(
            trial=now.trial,
            guided=guided,
            share=0.5 if now.phase == "trial" else 0.9 * (now.phase == "guiding"),
            prompt="same",
            challenge=now.challenges if now.challenge else 0,
            challenger=newer,
        )
        tried = now.candidate
        seen = {"decisions": 5, "room": 5, "disagreed": 2}
        shadow = ShadowTally(version=tried.version, **seen) if tried else None
        outcome = float(chance.random() < (0.9 if guided else 0.3))
        if number % 50 == 7:
            group.silent([SilentLine(episode=f"s{number}", arm=arm)])
        group.end(SpentLine(tokens=3, cost=0.5, at=60.0 * number))
        group.end(EpisodeLine(episode=f"e{number}", outcome=outcome, arm=arm, shadow=shadow, completion_tokens=9))
        if group.progress.fit_due:
            version = 1 + (group.progress.fit.version if group.progress.fit else 0)
            group.fitted(FitLine(version=version, episodes=number, licensed=True, reason="better"))
    return group


def test_the_state_is_as_without_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = lived(tmp_path / "long")
    monkeypatch.setattr(groups, "_MOST_LINES", 20)
    short = lived(tmp_path / "short")

    assert state_in(short.progress) == state_in(long.progress)
    assert short.progress.phase == "guiding"
    assert short.progress.challenges > 0
    assert short.progress.silent.total == 6
    assert short.progress.spending.since(0.0).tokens == 900
    assert len((tmp_path / "short" / LEDGER).read_text().splitlines()) <= 21
    assert len((tmp_path / "long" / LEDGER).read_text().splitlines()) > 600
    for folder in ("short", "long"):
        again = Group("_", tmp_path / folder, RULES)
        assert state_in(again.progress) == state_in(long.progress)


def test_the_state_does_not_grow_with_the_number_of_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_lines: None
) -> None:
    monkeypatch.setattr(states, "MOST_KNOWN", 50)
    monkeypatch.setattr(states, "MOST_EPISODES", 50)
    monkeypatch.setattr(curves, "_MOST_BLOCKS", 4)
    monkeypatch.setattr(curves, "_MOST_CHANGES", 4)
    sizes = []
    for episodes in (200, 400):
        group = lived(tmp_path / str(episodes), episodes=episodes)
        group.progress.spending.minutes.clear()
        sizes.append(len(json.dumps(state_in(group.progress))))
    assert sizes[1] < 1.2 * sizes[0]


def test_an_episode_is_counted_once_though_its_line_is_gone(tmp_path: Path, few_lines: None) -> None:
    group = Group("_", tmp_path, RULES)
    for number in range(30):
        group.end(line(f"e{number}"))
    again = Group("_", tmp_path, RULES)
    again.end(line("e0", 0.0))
    assert again.progress.episodes.count == 30
    assert again.progress.episodes.mean == 1.0


def test_replicas_follow_a_ledger_that_was_replaced(tmp_path: Path, few_lines: None) -> None:
    one, other = (Group("_", tmp_path, RULES) for _ in range(2))
    for number in range(50):
        (one if number % 5 else other).end(line(f"e{number}"))
    late = Group("_", tmp_path, RULES)
    for number in range(50, 100):
        one.end(line(f"e{number}"))
    for group in (one, other, late):
        group.follow()
        assert group.progress.episodes.count == 100
    other.end(line("last"))
    assert one.follow() == []
    assert state_in(one.progress) == state_in(other.progress)


def test_a_full_disk_leaves_the_long_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_MOST_LINES", 5)
    group = Group("_", tmp_path, RULES)
    for number in range(5):
        group.end(line(f"e{number}"))
    size = (tmp_path / LEDGER).stat().st_size
    with files_end_at(size + 200):  # room for one line, and not for the state
        group.end(line("last"))
    assert {path.name for path in tmp_path.iterdir()} == {LEDGER, f"{LEDGER}.lock"}
    assert len((tmp_path / LEDGER).read_text().splitlines()) == 6
    assert Group("_", tmp_path, RULES).progress.episodes.count == 6
    group.end(line("more"))
    assert len((tmp_path / LEDGER).read_text().splitlines()) == 1
    assert Group("_", tmp_path, RULES).progress.episodes.count == 7


def test_a_state_of_another_kind_is_told_and_not_taken(tmp_path: Path, few_lines: None) -> None:
    group = Group("_", tmp_path, RULES)
    for number in range(30):
        group.end(line(f"e{number}"))
    path = tmp_path / LEDGER
    first, *others = path.read_text().splitlines()
    broken: dict[str, Any] = json.loads(first)
    broken["state"]["phase"] = "asleep"
    path.write_text("\n".join([json.dumps(broken), *others]) + "\n")
    assert Group("_", tmp_path, RULES).progress.episodes.count == len(others)
