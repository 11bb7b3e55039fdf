"""The episodes that sft imitates: all, the distinct ones, or weighted by their reward."""

from pathlib import Path

import pytest

from qguide.qnet.errors import RecordError
from qguide.qnet.types import Message
from qguide.training.data.runs import JsonlWriter, RunFolder
from qguide.training.data.trajectories import Trajectory
from qguide.training.jobs.sft import read_demonstrations
from qguide.training.trajectory import react_reply


def trajectory(task: str, actions: str, *, reward: float = 1.0, thought: str = "") -> Trajectory:
    messages = [Message("user", "start")]
    for action in actions:
        messages += [Message("assistant", react_reply(thought, action)), Message("user", "did")]
    return Trajectory(
        task_id=task, kind="k", environment="e", messages=tuple(messages), reward=reward, source="policy", mistakes=(0,)
    )


def folder_of(path: Path, *rows: Trajectory) -> Path:
    with JsonlWriter(RunFolder(path).rows) as writer:
        writer.write(*(row.to_row() for row in rows))
    return path


def test_every_episode_is_imitated_with_the_weight_1(tmp_path: Path) -> None:
    lost = trajectory("t", "ab", reward=0.0)
    folder = folder_of(tmp_path / "run", lost, lost)
    first, second = read_demonstrations([folder])
    assert first == second
    assert (len(first.messages), first.mistakes, first.weight) == (5, (0,), 1.0)


def test_of_equal_sequences_of_actions_the_first_one_is_kept(tmp_path: Path) -> None:
    expert = folder_of(tmp_path / "expert", trajectory("t", "ab", thought="The expert's."))
    samples = folder_of(
        tmp_path / "samples",
        trajectory("t", "ab", thought="Another."),
        trajectory("t", "ba"),
        trajectory("t", "ba"),
        trajectory("u", "ab"),
    )
    kept = read_demonstrations([expert, samples], distinct=True)
    assert len(kept) == 3
    assert "The expert's." in kept[0].messages[1].content
    assert len(read_demonstrations([expert, samples])) == 5


def test_a_reward_may_be_the_weight_and_0_leaves_the_episode_out(tmp_path: Path) -> None:
    rewards = (0.25, 0.0, 1.0)
    folder = folder_of(tmp_path / "run", *(trajectory("t", "a", reward=r) for r in rewards))
    weights = [d.weight for d in read_demonstrations([folder], reward_weighted=True)]
    assert weights == [0.25, 1.0]


def test_a_negative_weight_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", trajectory("t", "a", reward=-1.0))
    with pytest.raises(RecordError, match=r"reward -1\.0, .*reward_weighted to false"):
        read_demonstrations([folder], reward_weighted=True)
