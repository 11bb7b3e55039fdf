"""Trajectories become ATIF, and import reads the same episodes back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qguide.qnet.errors import ConfigError
from qguide.qnet.types import Message, ToolCall
from qguide.training.data.runs import JsonlWriter
from qguide.training.data.trajectories import Trajectory, read_trajectories
from qguide.training.exports.atif import atif_row
from qguide.training.jobs.export_data import ExportConfig, run_export_data
from qguide.training.jobs.import_episodes import ImportConfig, run_import
from qguide.training.recordings.episode import build_episode

CALLS = (ToolCall("look", '{"at": "desk"}', "c1"), ToolCall("look", "not JSON", "c2"))
MESSAGES = (
    Message("system", "You find things."),
    Message("user", "Find the mug."),
    Message("assistant", "I look.", CALLS),
    Message("tool", "A mug.", tool_call_id="c1"),
    Message("tool", "", tool_call_id="c2"),
    Message("assistant", "It is on the desk."),
    Message("user", "Thanks."),
)


def trajectory() -> Trajectory:
    """An episode whose second reply is not to be imitated."""
    episode = build_episode(MESSAGES, reward=0.5, task_id="mug", source="agent-1", terminated=False, ignored=[5])
    return replace(episode, environment="imported")


def test_a_step_has_its_calls_and_what_came_of_them() -> None:
    row = atif_row(trajectory())
    assert [step.source for step in row.steps] == ["system", "user", "agent", "agent", "user"]
    assert [step.step_id for step in row.steps] == [1, 2, 3, 4, 5]
    called = row.steps[2]
    assert called.tool_calls is not None
    assert [call.arguments for call in called.tool_calls] == [{"at": "desk"}, {"raw_arguments": "not JSON"}]
    assert called.observation is not None
    assert [one.source_call_id for one in called.observation.results] == ["c1", "c2"]


def test_import_reads_what_export_wrote(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    with JsonlWriter(source) as writer:
        writer.write(trajectory().to_row())
    output = tmp_path / "atif.jsonl"
    done = run_export_data(ExportConfig(source=source, output=output, format="atif"))
    assert done["rows"] == 1
    written = json.loads(output.read_text())
    assert written["schema_version"].startswith("ATIF-v1.")
    assert "tool_calls" not in written["steps"][0]
    run_import(ImportConfig(source=output, output=tmp_path / "back"))
    (back,) = read_trajectories(tmp_path / "back" / "trajectories" / "rows.jsonl")
    assert back == trajectory()


def test_other_rows_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"chosen_value": 1}\n')
    with pytest.raises(ConfigError, match=r"PreferenceRow, .*atif .*`qguide import` .*`qguide collect`"):
        run_export_data(ExportConfig(source=source, output=tmp_path / "x", format="atif"))
