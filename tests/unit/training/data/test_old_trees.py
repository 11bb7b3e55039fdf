"""Trees of version 1 become trees of today, by the command."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from qguide.cli import app
from qguide.qnet.records import TreeRow
from qguide.training.data.runs import read_rows

TASK = {"task_id": "t", "kind": "k", "environment": "e", "first_observation": "go", "draws": 1}


def node(number: int, parent: int, depth: int, action: str) -> dict[str, Any]:
    place = {"id": number, "parent": parent, "depth": depth, "action": action}
    return place | {"observation": "seen", "source": "p"}


PATH = [node(1, 0, 1, "a"), node(2, 1, 2, "b")]
SEARCHED = TASK | {"version": 1, "nodes": PATH, "visit_counts": [3, 0], "values": [0.5, None]}
JUDGED = TASK | {
    "version": 1,
    "nodes": PATH,
    "judged": [
        {"parent": 1, "action": action, "q_value": q, "judge": "j@1"}
        for action, q in (("b", 0.9), ("c", 0.1))
    ],
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
    assert [(n.parent, n.depth, n.action, n.tried) for n in judged.nodes][1:] == [
        (1, 2, "b", True),
        (1, 2, "c", False),
    ]
    assert json.loads((tmp_path / "rows.jsonl.v1").read_text()) == SEARCHED


def test_trees_of_today_are_left_alone(tmp_path: Path) -> None:
    run = write(tmp_path / "rows.jsonl", TASK | {"version": 2, "nodes": PATH})
    before = (tmp_path / "rows.jsonl").read_text()
    assert "0 trees converted" in convert(run).output
    assert (tmp_path / "rows.jsonl").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_file_without_trees_is_refused_and_kept(tmp_path: Path) -> None:
    run = write(tmp_path / "rows.jsonl", {"task_id": "t", "q_values": []})
    refused = convert(run)
    assert refused.exit_code != 0
    assert "holds no trees" in refused.output
    assert json.loads((tmp_path / "rows.jsonl").read_text())["task_id"] == "t"
