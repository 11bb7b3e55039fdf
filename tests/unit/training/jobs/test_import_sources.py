"""`qguide import` of the server's own episodes, and of sources that it refuses."""

import gzip
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from typer.testing import CliRunner

from qguide.cli import app
from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.records import DrawnRow, NodeRow, TreeRow
from qguide.training.data.trajectories import trajectories_of
from qguide.training.jobs.import_episodes import ImportConfig, run_import
from qguide.training.learning.sources import read_learnable
from qguide.training.recordings.fields import Fields
from tests.support.decision_groups import candidate, groups_row
from tests.support.recorded_episodes import DESK, DONE, GIVE_UP, SHELF, episode, imported, trees, write


def test_bad_records_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    rows = [episode(*DESK, DONE, reward=1.0), {"messages": "SECRET"}]
    with pytest.raises(RecordError) as caught:
        imported(tmp_path, rows)
    said = str(caught.value)
    assert "1 of 2 records hold no episode" in said
    assert "episodes.jsonl, line 2: messages is not a list" in said
    assert "--skip-bad" in said
    assert "SECRET" not in said
    assert not list((tmp_path / "out").rglob("rows.*"))
    report = imported(tmp_path, rows, skip_bad=True)
    assert (report.episodes, report.skipped) == (1, 1)


def test_only_the_first_bad_records_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="and 980 more"):
        imported(tmp_path, [{"messages": None}] * 1000)


def test_a_source_without_episodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"episodes\.jsonl .*--format:\n  episodes\.jsonl, line 1: messages"):
        imported(tmp_path, [{"messages": None}], skip_bad=True)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "hello"}, r"line 1 .*known .*--format \(served, messages"),
        ({"messages": [], "conversations": []}, r"line 1 .*\(messages, sharegpt\): .*--format"),
    ],
)
def test_an_unclear_format_is_refused(tmp_path: Path, row: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        imported(tmp_path, [row])


@pytest.mark.parametrize("there", ["file://{}/logs", "file://{}/lo*/*.gz", "memory://logs", "memory://logs/*.jsonl*"])
def test_recordings_at_an_address_become_the_same_rows(there: str, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    rows = [episode(*DESK, DONE, reward=1.0), episode(*SHELF, GIVE_UP, reward=0.0, task="pen")]
    (logs / "a.jsonl.gz").write_bytes(gzip.compress(write(logs, rows).read_bytes()))
    (logs / "episodes.jsonl").unlink()
    store = MemoryFileSystem()
    store.put(str(logs), "/logs", recursive=True)
    outputs = tmp_path / "here", tmp_path / "there"
    for source, output in zip((str(logs), there.format(tmp_path)), outputs, strict=True):
        command = ["import", source, "--output", str(output), "--reward-key", "reward"]
        assert CliRunner().invoke(app, command).exit_code == 0
    found, again = (read_learnable([Path(at)], Fields(), skip_bad=False) for at in (str(logs), there.format(tmp_path)))
    assert found == again
    store.rm("/logs", recursive=True)
    for name in ("trajectories", "trees"):
        here, read = ((output / name / "rows.jsonl").read_bytes() for output in outputs)
        assert here == read


def test_episodes_that_the_server_recorded_are_imported(tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    row = TreeRow(
        task_id="served:1",
        kind="served",
        environment="served",
        first_observation="Find the mug.",
        nodes=(
            NodeRow(
                id=1,
                parent=0,
                depth=1,
                action="Action: look",
                observation="Mug",
                source="p",
                drawn=(DrawnRow(action="Action: look", count=3, greedy=False),),
            ),
            NodeRow(id=2, parent=1, depth=2, action="Action: take", observation="", reward=1, source="p"),
        ),
        draws=1,
    )
    (served / "trees-1.jsonl").write_text(row.model_dump_json() + "\n")
    (served / "offers-1.jsonl").write_text('{"no": "episode"}\n')
    ledger = served / "learning" / "_" / "ledger.jsonl"
    ledger.parent.mkdir(parents=True)
    ledger.write_text('{"kind": "fit"}\n')
    run_import(ImportConfig(source=served, output=tmp_path / "out"))
    (tree,) = trees(tmp_path)
    assert tree.nodes == row.nodes
    assert (tree.task_id, tree.environment) == ("served:1", "served")


def served_node(number: int, **fields: object) -> dict[str, object]:
    """A node of a served episode, which is a single path."""
    place = {"id": number, "parent": number - 1, "depth": number}
    return {**place, "action": f"Action: {number}", "observation": "", "source": "p", **fields}


def served_tree(*nodes: dict[str, object], kind: str = "served") -> dict[str, object]:
    """A row of a served episode."""
    return {
        "task_id": "served:1",
        "kind": kind,
        "environment": "served",
        "first_observation": "Find the mug.",
        "nodes": nodes,
        "draws": 1,
    }


def test_actions_without_an_observation_between_them_are_a_bad_record(tmp_path: Path) -> None:
    good = served_tree(served_node(1), served_node(2, observed=[], reward=1))
    rows = [served_tree(served_node(1, observed=[]), served_node(2)), good]
    with pytest.raises(RecordError, match=r"line 1: node 1 .*served:1 .*observation"):
        imported(tmp_path, rows)
    report = imported(tmp_path, rows, skip_bad=True)
    assert (report.episodes, report.skipped) == (1, 1)


def test_replies_that_are_not_imitated_are_not_in_trees_either(tmp_path: Path) -> None:
    framing = {"role": "assistant", "content": "OK.", "weight": 0}, {"role": "user", "content": "?"}
    rows = [episode(*framing, done, reward=1.0) for done in (DONE, GIVE_UP)]
    imported(tmp_path, rows)
    (tree,) = trees(tmp_path)
    assert [node.mistake for node in tree.nodes] == [True, False, False]
    assert {found.mistakes for found in trajectories_of(tree)} == {(0,)}


def test_a_tree_of_what_nobody_did_is_a_bad_record(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"line 1: .*actions$"):
        imported(tmp_path, [served_tree(served_node(1, tried=False))])


def test_a_served_tree_of_version_1_names_the_remedy(tmp_path: Path) -> None:
    old = served_tree(served_node(1)) | {"version": 1}
    with pytest.raises(RecordError, match=r"line 1: .*version 1; .*`qguide convert-records PATH`"):
        imported(tmp_path, [old])


def test_candidates_of_decision_groups_are_no_episodes(tmp_path: Path) -> None:
    """Each but the taken one would be an episode that failed."""
    groups = groups_row(([candidate("Action: wait"), candidate("Action: go")], 1))
    with pytest.raises(RecordError, match=r"line 1: .*\bt .*`qguide collect`.*`qguide explore`"):
        imported(tmp_path, [groups.model_dump(mode="json")])


def test_a_served_tree_without_the_named_task_key_keeps_its_task_id(tmp_path: Path) -> None:
    imported(tmp_path, [served_tree(served_node(1), kind="")], task_key="kind")
    assert [tree.task_id for tree in trees(tmp_path)] == ["served:1"]


def test_a_call_with_half_a_character_is_a_bad_record(tmp_path: Path) -> None:
    asked = {"from": "human", "value": "Find the mug."}
    turns = [asked, {"from": "function_call", "value": '{"name": "\\ud800"}'}]
    bad = {"conversations": turns, "reward": 0}
    good = {"conversations": [asked, {"from": "gpt", "value": "Here."}], "reward": 1}
    with pytest.raises(RecordError, match=r"line 1: .* not UTF-8"):
        imported(tmp_path, [bad, good])
    assert imported(tmp_path, [bad, good], skip_bad=True).skipped == 1
