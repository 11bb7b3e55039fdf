"""Trees and decision groups of version 1 become trees of today, by the command."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from qguide.cli import app
from qguide.qnet.errors import RecordError
from qguide.qnet.records import TreeRow
from qguide.training.data.decision_groups import decisions_of, read_groups
from qguide.training.data.runs import JsonlWriter, read_rows
from qguide.training.data.trajectories import read_trajectories
from qguide.training.jobs.export_data import ExportConfig, run_export_data
from qguide.training.learning.sources import read_learnable
from qguide.training.recordings.fields import Fields

TASK = {"task_id": "t", "kind": "k", "environment": "e", "first_observation": "go", "draws": 1}


def node(number: int, parent: int, depth: int, action: str) -> dict[str, Any]:
    place = {"id": number, "parent": parent, "depth": depth, "action": action}
    return place | {"observation": "seen", "source": "p"}


PATH = [node(1, 0, 1, "a"), node(2, 1, 2, "b")]
SEARCHED = TASK | {"version": 1, "nodes": PATH, "visit_counts": [3, 0], "values": [0.5, None]}
JUDGED = TASK | {
    "version": 1,
    "nodes": PATH,
    "judged": [{"parent": 1, "action": action, "q_value": q, "judge": "j@1"} for action, q in (("b", 0.9), ("c", 0.1))],
}


PLAYED: dict[str, Any] = {
    "version": 1,
    "task_id": "t",
    "kind": "k",
    "environment": "e",
    "messages": [
        {"role": "system", "content": "Play."},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "seen"},
        {"role": "assistant", "content": "b"},
    ],
    "outcome_reward": 1.0,
    "terminated": True,
    "steps": 2,
    "completion_tokens": 7,
    "source": "p",
    "seed": 3,
    "mistakes": [0],
    "drawn": [[{"action": "a", "count": 2}], []],
    "rewards": [0.5, 1.0],
}


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path.parent)


def convert(*sources: str) -> Any:
    return CliRunner().invoke(app, ["convert-records", *sources])


def test_values_of_searches_and_judges_become_columns(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    run = write(tmp_path / "rows.jsonl", SEARCHED)
    served = write(tmp_path / "served" / "trees-1.jsonl", JUDGED)
    shown = convert(run, served)
    assert shown.exit_code == 0, shown.output
    [searched] = read_rows(tmp_path / "rows.jsonl", TreeRow)
    assert searched.values == {"visits": (3.0, None), "mcts": (0.5, None)}
    [judged] = read_rows(tmp_path / "served" / "trees-1.jsonl", TreeRow)
    assert judged.values == {"judge:j@1": (None, 0.9, 0.1)}
    assert [(n.parent, n.depth, n.action, n.tried) for n in judged.nodes][1:] == [(1, 2, "b", True), (1, 2, "c", False)]
    assert judged.nodes[-1].source == "agent", "as the server writes it, not the judge"
    assert json.loads((tmp_path / "rows.jsonl.v1").read_text()) == SEARCHED


END = {"outcome_reward": 0.5, "steps": 2, "terminated": True}
TRIED = {"count": 2, "logprob": -1.0, "observation": "seen", "continuations": [END]}
WAIT, GO, TAKE = ({"action": f"Action: {does}"} | TRIED for does in ("wait", "go", "take"))
GROUPS = {name: TASK[name] for name in ("task_id", "kind", "environment", "first_observation")} | {
    "version": 1,
    "decisions": [
        {"candidates": [WAIT, GO], "chosen": 1, "greedy": 0},
        {"candidates": [TAKE], "chosen": 0, "greedy": None},
    ],
    "source": "policy",
    "continuation": "expert",
    "seed": 0,
    "completion_tokens": 7,
    "start": [END],
}


def test_decision_groups_become_a_path_and_its_other_candidates(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("rro wrote its pairs here")
    shown = convert(write(tmp_path / "explored.jsonl", GROUPS))
    assert shown.exit_code == 0, shown.output
    [tree] = read_groups(tmp_path / "explored.jsonl")
    assert (tree.completion_tokens, tree.rollouts[0].steps) == (7, 2)
    first, second = decisions_of(tree)
    assert [node.action for node in first.candidates] == [WAIT["action"], GO["action"]]
    assert (first.chosen, first.greedy, second.greedy) == (1, 0, None)
    assert [(n.count, n.logprob, n.outcome, n.source) for n in tree.nodes] == [(2, -1.0, 0.5, "policy")] * 3
    assert second.history[-1].content == "seen"


def test_trajectories_become_paths(tmp_path: Path) -> None:
    shown = convert(write(tmp_path / "rows.jsonl", PLAYED))
    assert shown.exit_code == 0, shown.output
    [row] = read_rows(tmp_path / "rows.jsonl", TreeRow)
    assert (row.completion_tokens, row.draws) == (7, 1)
    [episode] = read_trajectories(tmp_path)
    assert [(said.role, said.content) for said in episode.messages] == [
        (said["role"], said["content"]) for said in PLAYED["messages"]
    ]
    assert (episode.reward, episode.terminated, episode.source) == (1.0, None, "p")
    assert (episode.mistakes, episode.earned) == ((0,), (0.5, 1.0))
    assert [[one.count for one in drawn] for drawn in episode.drawn] == [[2], []]


@pytest.mark.parametrize(
    ("environment", "end", "terminated"),
    [
        ("e", {"observation": ""}, None),
        ("e", {"observation": "seen"}, None),
        ("served", {"observation": ""}, True),
        ("e", {"observation": "", "terminated": False}, False),
    ],
)
def test_an_import_that_took_ends_for_granted_says_so(
    tmp_path: Path, environment: str, end: dict[str, Any], terminated: bool | None
) -> None:
    node = {"id": 1, "parent": 0, "depth": 1, "action": "a", "source": "p", "terminated": True}
    row = TASK | {"version": 1, "environment": environment, "nodes": [node | end]}
    shown = convert(write(tmp_path / "rows.jsonl", row))
    assert shown.exit_code == 0, shown.output
    [converted] = read_rows(tmp_path / "rows.jsonl", TreeRow)
    assert converted.nodes[0].terminated is terminated


def test_trees_of_today_are_left_alone(tmp_path: Path) -> None:
    run = write(tmp_path / "rows.jsonl", TASK | {"version": 2, "nodes": PATH})
    before = (tmp_path / "rows.jsonl").read_text()
    assert "0 rows converted" in convert(run).output
    assert (tmp_path / "rows.jsonl").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_file_without_trees_is_refused_and_kept(tmp_path: Path) -> None:
    run = write(tmp_path / "rows.jsonl", {"task_id": "t", "q_values": []})
    refused = convert(run)
    assert refused.exit_code != 0
    assert "line 1 holds no tree" in refused.output
    assert "labels are made again by `qguide label`" in refused.output
    assert json.loads((tmp_path / "rows.jsonl").read_text())["task_id"] == "t"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize(
    ("row", "flaw"),
    [
        (TASK | {"version": 3, "nodes": PATH}, "version: Input should be 2"),
        (JUDGED | {"nodes": [{"id": 1}]}, "another shape (KeyError)"),
    ],
)
def test_the_line_without_a_tree_is_named(tmp_path: Path, row: dict[str, Any], flaw: str) -> None:
    refused = convert(write(tmp_path / "rows.jsonl", SEARCHED, row))
    assert refused.exit_code == 1
    assert "line 2 holds no tree of version 1 or 2" in refused.output
    assert flaw in refused.output
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    run = write(tmp_path / "rows.jsonl", SEARCHED)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"task_id": "t", "vers')
    assert "1 rows converted" in convert(run).output
    assert len(list(read_rows(tmp_path / "rows.jsonl", TreeRow))) == 1
    assert (tmp_path / "rows.jsonl.v1").read_text().endswith('"vers')


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_who_may_read_a_file_may_read_it_converted(tmp_path: Path, mode: int) -> None:
    served = write(tmp_path / "trees-1.jsonl", JUDGED)
    (tmp_path / "trees-1.jsonl").chmod(mode)
    assert convert(served).exit_code == 0
    for name in ("trees-1.jsonl", "trees-1.jsonl.v1"):
        assert (tmp_path / name).stat().st_mode & 0o777 == mode, name


def test_a_file_that_a_server_writes_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trees-1.jsonl"
    served = write(path, JUDGED)
    converted = JsonlWriter.write

    def write_as_a_server_does(writer: JsonlWriter, *rows: Any) -> int:
        if path.read_text().count("\n") == 1:
            write(path, JUDGED, SEARCHED)
        return converted(writer, *rows)

    monkeypatch.setattr(JsonlWriter, "write", write_as_a_server_does)
    refused = convert(served)
    assert refused.exit_code == 1
    assert "stop the server that writes it" in refused.output
    assert [json.loads(line) for line in path.read_text().splitlines()] == [JUDGED, SEARCHED]
    assert [each.name for each in tmp_path.iterdir()] == ["trees-1.jsonl"]


def test_a_conversion_that_ends_before_its_last_step_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(tmp_path / "rows.jsonl", SEARCHED)

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", fail)
        assert convert(run).exit_code == 1
    assert json.loads((tmp_path / "rows.jsonl").read_text()) == SEARCHED
    assert "1 rows converted" in convert(run).output
    assert json.loads((tmp_path / "rows.jsonl.v1").read_text()) == SEARCHED


def test_an_older_copy_is_not_overwritten(tmp_path: Path) -> None:
    run = write(tmp_path / "rows.jsonl", SEARCHED)
    (tmp_path / "rows.jsonl.v1").write_text("kept")
    refused = convert(run)
    assert refused.exit_code == 1
    assert "is there already" in refused.output
    assert (tmp_path / "rows.jsonl.v1").read_text() == "kept"


def test_a_source_without_trees_is_refused(tmp_path: Path) -> None:
    empty = convert(str(tmp_path))
    assert empty.exit_code == 2
    assert "holds no rows.jsonl and no trees-*.jsonl" in empty.output
    missing = convert(str(tmp_path / "nosuch" / "rows.jsonl"))
    assert missing.exit_code == 2
    assert "does not exist" in missing.output
    for elsewhere in ("s3://bucket/rows", str(tmp_path / "rows.parquet")):
        refused = convert(elsewhere)
        assert refused.exit_code == 2
        assert "convert the run that it is of" in " ".join(refused.output.split())


@pytest.mark.parametrize("row", [SEARCHED, GROUPS, PLAYED], ids=["tree", "groups", "path"])
def test_rows_of_version_1_name_their_remedy(tmp_path: Path, row: dict[str, Any]) -> None:
    write(tmp_path / "rows.jsonl", row)
    with pytest.raises(RecordError, match="qguide convert-records PATH"):
        list(read_rows(tmp_path / "rows.jsonl", TreeRow))
    export = ExportConfig(source=tmp_path, output=tmp_path / "out", format="parquet")
    with pytest.raises(RecordError, match="qguide convert-records PATH"):
        run_export_data(export)


@pytest.mark.parametrize("fields", [Fields(), Fields(default_reward=0.0)])
def test_trajectories_of_version_1_are_no_recording(tmp_path: Path, fields: Fields) -> None:
    """Their reward lies at another place than that of a recording, which would be 0 here."""
    write(tmp_path / "rows.jsonl", PLAYED)
    with pytest.raises(RecordError, match="qguide convert-records PATH"):
        read_learnable([tmp_path], fields, skip_bad=False)
    assert convert(str(tmp_path)).exit_code == 0
    [episode] = read_learnable([tmp_path], fields, skip_bad=False)
    assert (episode.reward, episode.rewards) == (1.0, (0.5, 1.0))


def test_labels_of_version_1_name_their_remedy(tmp_path: Path) -> None:
    labels = {"version": 1, "target": "max", "messages": [], "q_values": []}
    write(tmp_path / "rows.jsonl", TASK | labels)
    with pytest.raises(RecordError, match=r"version: .* 2; .*`qguide label`") as refused:
        list(read_rows(tmp_path / "rows.jsonl", TreeRow))
    assert "convert-records" not in str(refused.value)
