"""Orders of the operator: pin, forbid, promote, roll back."""

from pathlib import Path

import pytest

from qguide.qnet.errors import InvalidRequestError
from qguide.server.episodes.learning_part import ShadowTally
from qguide.server.learning.group import Group
from qguide.server.learning.lines import EpisodeLine, FitLine
from qguide.server.settings.learning import Rules


def in_trial(folder: Path) -> Group:
    """A group whose first fit has a licence, and has been in the shadow."""
    group = Group("_", folder, Rules())
    fitted(group, 1)
    return group


def fitted(group: Group, version: int) -> None:
    """A licensed fit, and an episode in its shadow."""
    group.fitted(FitLine(version=version, episodes=0, licensed=True, reason="better"))
    tally = ShadowTally(version=version, decisions=20, room=20, disagreed=5)
    group.end(EpisodeLine(episode=f"s{version}", outcome=1.0, arm=None, shadow=tally))


def test_a_promoted_version_guides(tmp_path: Path) -> None:
    group = in_trial(tmp_path)
    assert [change.phase for change in group.order("promote")] == ["guiding"]
    assert group.progress.share == 0.9
    with pytest.raises(InvalidRequestError, match=r"version 1 .*/v1/learning"):
        group.order("promote")


def test_nothing_without_a_licence_can_be_promoted(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"licence; .*/v1/learning"):
        Group("_", tmp_path, Rules()).order("promote")


def test_a_rollback_by_hand_collects_until_the_next_fit(tmp_path: Path) -> None:
    group = in_trial(tmp_path)
    assert [change.phase for change in group.order("roll_back")] == ["collecting"]
    assert group.progress.version is None
    with pytest.raises(InvalidRequestError, match=r"'collecting'.*'forbid'"):
        group.order("roll_back")
    fitted(group, 2)
    assert (group.progress.phase, group.progress.trial) == ("trial", 2)


def test_a_pinned_version_stays(tmp_path: Path) -> None:
    group = in_trial(tmp_path)
    group.order("pin")
    fitted(group, 2)
    assert group.progress.version == 1
    assert Group("_", tmp_path, Rules()).progress.mode == "pinned"


def test_what_is_forbidden_is_not_tried_until_it_is_allowed(tmp_path: Path) -> None:
    group = in_trial(tmp_path)
    group.order("forbid")
    fitted(group, 2)
    assert group.progress.phase == "collecting"
    assert [change.phase for change in group.order("auto")] == ["trial"]


def test_what_is_forbidden_cannot_be_promoted(tmp_path: Path) -> None:
    group = in_trial(tmp_path)
    group.order("forbid")
    fitted(group, 2)
    with pytest.raises(InvalidRequestError, match=r"'forbidden'.*'auto'"):
        group.order("promote")
    assert group.progress.phase == "collecting"


def test_a_promoted_challenger_replaces_what_guides(tmp_path: Path) -> None:
    group = in_trial(tmp_path)
    group.order("promote")
    fitted(group, 2)
    assert group.progress.challenge is not None
    assert [change.version for change in group.order("promote")] == [2]
    again = Group("_", tmp_path, Rules()).progress
    assert (again.version, again.challenger_share) == (2, 0.0)


def test_a_pinned_version_shares_with_no_challenger(tmp_path: Path) -> None:
    group = in_trial(tmp_path)
    group.order("promote")
    fitted(group, 2)
    assert group.progress.challenger_share == 0.45
    group.order("pin")
    assert group.progress.challenger_share == 0
