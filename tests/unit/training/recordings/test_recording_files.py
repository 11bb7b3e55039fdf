"""Places of a recording's records: folders of files, own formats, outcomes of their own."""

import json
import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from qguide.qnet.errors import ConfigError, RecordError
from qguide.training.data.trajectories import Trajectory
from qguide.training.recordings.episode import BadRecord
from qguide.training.recordings.fields import Fields, read_outcomes
from qguide.training.recordings.formats.read import read_episodes, recording_of

CHAT = [{"role": "user", "content": "Find the mug."}, {"role": "assistant", "content": "Here."}]


def write(path: Path, value: object) -> Path:
    """A file with one value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def read(source: Path, fields: Fields | None = None, format_: str | None = None) -> list[Any]:
    """The episodes of a source, and what holds none."""
    return list(read_episodes(recording_of(source, format_), fields or Fields()))


def test_one_file_per_episode_in_folders_gives_the_task_its_name(tmp_path: Path) -> None:
    for task, run, reward in (("mug", "a", 0), ("mug", "b", 1), ("pen", "a", 1)):
        write(tmp_path / task / f"{run}.json", {"messages": CHAT, "info": {"reward": reward}})
    write(tmp_path / ".hidden" / "a.json", {"not": "a record"})
    found = read(tmp_path, Fields(reward="info.reward", task="@folder"))
    assert [(one.task_id, one.reward) for one in found] == [("mug", 0), ("mug", 1), ("pen", 1)]
    by_file = read(tmp_path, Fields(reward="info.reward", task="@file"))
    assert [one.task_id for one in by_file] == ["a", "b", "a"]


def test_a_linked_file_is_in_the_folder_that_holds_the_link(tmp_path: Path) -> None:
    blob = write(tmp_path / "blobs" / "0af3", {"messages": CHAT, "reward": 1})
    (tmp_path / "gpt" / "runs").mkdir(parents=True)
    (tmp_path / "gpt" / "runs" / "a.json").symlink_to(blob)
    for place, folder in (("@folder", "runs"), ("@folders.1", "gpt")):
        [found] = read(tmp_path / "gpt", Fields(task=place))
        assert found.task_id == folder


def test_a_task_id_may_be_of_several_fields(tmp_path: Path) -> None:
    row = {"messages": CHAT, "reward": 1, "set": "a", "run": {"id": 7}}
    source = write(tmp_path / "rows.json", [row, {**row, "set": None}])
    found = read(source, Fields(task="set+run.id"))
    assert found[0].task_id == "a/7"
    assert found[1].task_id not in ("a/7", "7")


def test_outcomes_of_an_evaluation_are_joined_by_task_id(tmp_path: Path) -> None:
    rows = [{"messages": CHAT, "instance_id": name} for name in ("a", "b", "c")]
    source = write(tmp_path / "rows.json", rows)
    report = write(tmp_path / "report" / "r.json", {"resolved_ids": ["a"], "unresolved_ids": ["b"]})
    found = read(source, Fields(task="instance_id", outcomes=read_outcomes(report)))
    assert [one.reward for one in found if isinstance(one, Trajectory)] == [1.0, 0.0]
    assert isinstance(found[2], BadRecord)
    assert "the outcomes have no task 'c'" in found[2].reason


def test_outcomes_of_runs_are_joined_by_an_id_of_their_own(tmp_path: Path) -> None:
    rows = [{"messages": CHAT, "ticket": 7, "run": {"id": name}} for name in ("a", "b", "c")]
    source = write(tmp_path / "rows.json", rows)
    found = read(source, Fields(task="ticket", outcome="run.id", outcomes={"a": 1.0, "b": 0.0, "7": 0.5}))
    assert [(one.task_id, one.reward) for one in found if isinstance(one, Trajectory)] == [("7", 1.0), ("7", 0.0)]
    assert isinstance(found[2], BadRecord)
    assert "the outcomes have no run.id 'c'" in found[2].reason


@pytest.mark.parametrize(
    ("said", "outcomes"),
    [
        ({"a": 0.5, "b": True}, {"a": 0.5, "b": 1.0}),
        ({"a": {"score": 2}, "b": {"success": False}}, {"a": 2.0, "b": 0.0}),
        ({"aggregate": 1, "individual": {"a": {"success": True}}}, {"a": 1.0}),
        ({"resolved": ["a"], "empty_patch_ids": ["b"]}, {"a": 1.0, "b": 0.0}),
    ],
)
def test_outcomes_have_the_shapes_of_evaluations(said: object, outcomes: dict[str, float], tmp_path: Path) -> None:
    assert read_outcomes(write(tmp_path / "o.json", said)) == outcomes


@pytest.mark.parametrize("said", [[1], {}, {"a": "good"}])
def test_other_outcomes_are_refused(said: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"o\.json"):
        read_outcomes(write(tmp_path / "o.json", said))


def test_a_format_of_ones_own_is_named_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "house_logs.py").write_text(
        "def plain(record):\n"
        "    for run in record['runs']:\n"
        "        yield {'messages': run['said'], 'reward': run['won'], 'task_id': record['task']}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    runs = [{"said": CHAT, "won": 0.5}, {"said": CHAT, "won": 1}]
    source = write(tmp_path / "logs.json", [{"task": "mug", "runs": runs}, {"other": 1}])
    found = read(source, format_="house_logs:plain")
    assert [(one.task_id, one.reward) for one in found[:2]] == [("mug", 0.5), ("mug", 1.0)]
    assert "does not have the shape of this format (KeyError)" in found[2].reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nosuch", "'nosuch' .* served, messages"),
        ("nosuch_module:plain", "nosuch_module:plain .*: ModuleNotFoundError"),
        ("json:nosuch", "json:nosuch .*: AttributeError"),
        ("json:__name__", r"json:__name__ .*Layout .*docs/bring/data\.md"),
    ],
)
def test_a_format_that_is_not_there_is_refused(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=reason):
        recording_of(write(tmp_path / "a.json", {}), name)


def test_a_record_of_no_format_is_read_where_its_messages_are_said_to_lie(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "left"}]
    path = write(tmp_path / "a.json", {"trace": {"said": said}, "info": {"reward": 1, "case": 7}})
    fields = Fields(reward="info.reward", task="info.case", messages="trace.said")
    [episode] = read_episodes(recording_of(path, messages=fields.messages), fields)
    assert isinstance(episode, Trajectory)
    assert (episode.task_id, episode.reward, episode.messages[-1].text) == ("7", 1.0, "left")
    with pytest.raises(ConfigError, match=r"a\.json, line 1 .*known .*--format \(served"):
        recording_of(path, messages="trace.elsewhere")


def test_a_place_of_task_ids_at_which_no_record_has_one_is_refused(tmp_path: Path) -> None:
    rows = [{"messages": CHAT, "reward": 1, "case": name} for name in ("a", "b")]
    source = write(tmp_path / "rows.json", rows)
    with pytest.raises(ConfigError, match=r"rows\.json .*'cas'; .*--task-key"):
        read(source, Fields(task="cas"))
    assert [one.task_id for one in read(source, Fields(task="case"))] == ["a", "b"]
    write(tmp_path / "more.json", rows)
    with pytest.raises(ConfigError, match=r"more\.json \(.* 2 files\) .*'cas';"):
        read(tmp_path, Fields(task="cas"))


@pytest.mark.parametrize(
    ("address", "lack"),
    [
        ("memory://bucket/none.jsonl", ".*exist"),
        ("file:///data/none-*.jsonl", ".*folder"),
        ("nowhere://bucket/episodes.jsonl", ".*reached: Protocol"),
    ],
)
def test_an_address_without_recordings_is_named(address: str, lack: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(address)} {lack}"):
        recording_of(Path(address))


def test_rows_of_parquet_are_records(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}
    called = [CHAT[0], {"role": "assistant", "tool_calls": [call]}]
    called += [{"role": "tool", "tool_call_id": "c1", "content": "杯子 🙂"}, CHAT[1]]
    rows: list[dict[str, Any]] = [
        {"said": said, "score": score, "case": case, "at": datetime(2026, 1, 2, tzinfo=UTC)}
        for said, score, case in ((called, 0.5, 7), (CHAT, None, 8), (CHAT, math.nan, 9))
    ]
    path = tmp_path / "shards" / "0.parquet"
    path.parent.mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    fields = Fields(messages="said", reward="score", task="case")
    found: list[Any] = list(read_episodes(recording_of(path.parent, messages="said"), fields))
    assert isinstance(found[0], Trajectory)
    assert (found[0].task_id, found[0].reward, found[0].messages[2].text) == ("7", 0.5, "杯子 🙂")
    assert found[0].messages[1].tool_calls[0].name == "look"
    assert [one.line for one in found[1:]] == [2, 3]
    assert "it has no 'score'" in found[1].reason
    assert "it has no 'score'" in found[2].reason
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(RecordError, match=r"0\.parquet .*: Parquet"):
        recording_of(path, messages="said")


def test_a_number_that_json_lacks_counts_only_in_a_column_that_is_read(tmp_path: Path) -> None:
    read_as = [(0.5, math.nan, math.inf), (0.5, 1.0, -math.inf), (math.inf, 1.0, 1.0)]
    rows = [{"messages": CHAT, "reward": r, "task": "a", "meta": {"cost": c}, "of": [o]} for r, c, o in read_as]
    path = tmp_path / "0.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    first, second, refused = read(path, Fields(reward="reward", task="task"))
    assert [first.reward, second.reward] == [0.5, 0.5]
    assert "reward" in refused.reason
    [missing, *_] = read(path, Fields(reward="meta.cost", task="task"))
    assert "it has no 'meta.cost'" in missing.reason


def test_an_unknown_record_is_told_of_the_levers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--messages-key"):
        recording_of(write(tmp_path / "a.json", {"what": "ever"}))
