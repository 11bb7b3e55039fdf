"""Statuses of formats that say whether an episode ended, was cut short, or neither."""

from collections.abc import Callable
from pathlib import Path

import pytest

from qguide.training.data.trajectories import Trajectory
from qguide.training.recordings.fields import Fields
from qguide.training.recordings.formats.read import read_episodes, recording_of
from tests.support.recordings.agents import mini_swe_agent, tau2_bench
from tests.support.recordings.runs import intercode, terminal_bench, verifiers
from tests.support.recordings.traces import inspect_json


@pytest.mark.parametrize(
    ("write", "recorded", "instead", "terminated"),
    [
        (tau2_bench, '"max_steps"', '"user_stop"', True),
        (tau2_bench, '"max_steps"', '"infrastructure_error"', False),
        (tau2_bench, '"max_steps"', "null", None),
        (terminal_bench, '"agent_timeout"', '"none"', True),
        (terminal_bench, '"agent_timeout"', '"test_timeout"', True),
        (terminal_bench, '"agent_timeout"', '"context_length_exceeded"', False),
        (terminal_bench, '"agent_timeout"', '"unset"', None),
        (verifiers, '"max_turns"', '"done"', True),
        (verifiers, '"max_turns"', "null", None),
        (mini_swe_agent, '"Submitted"', '"LimitsExceeded"', False),
        (mini_swe_agent, '"Submitted"', "null", None),
        (inspect_json, '"events": []', '"events": [], "limit": {"type": "token"}', False),
        (inspect_json, '"events": []', '"events": [], "error": {"message": "gone"}', False),
        (intercode, '"max_reward": 1.0', '"max_reward": 0.5', False),
        (intercode, '"turns_max": 2', '"turns_max": 3, "max_reward": 0.5', True),
        (intercode, '"turns_max": 2', '"max_reward": 0.5', None),
    ],
)
def test_only_a_status_states_an_end(
    write: Callable[[Path], None], recorded: str, instead: str, terminated: bool | None, tmp_path: Path
) -> None:
    write(tmp_path)
    texts = {file: file.read_text() for file in tmp_path.rglob("*") if file.is_file()}
    assert any(recorded in text for text in texts.values())
    for file, text in texts.items():
        file.write_text(text.replace(recorded, instead))
    (episode,) = read_episodes(recording_of(tmp_path, None), Fields(default_reward=0.0))
    assert isinstance(episode, Trajectory), episode
    assert episode.terminated is terminated
