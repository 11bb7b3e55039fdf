"""Exploration trees, labels and decision groups, drawn in the playground from rows of the jobs."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from selenium.webdriver.support.ui import Select

from qguide.qnet.records import NodeRow, TreeRow
from tests.e2e.playground.conftest import EVIL, Page
from tests.support.decision_groups import candidate, groups_row

TASK = {"task_id": "game-7", "kind": "heat", "environment": "fake"}
FIRST = "A room. Your task is to: find the mug."


def node(number: int, parent: int, depth: int, action: str, **more: Any) -> NodeRow:
    fields = {"observation": f"After {number}.", "source": "policy", **more}
    return NodeRow(id=number, parent=parent, depth=depth, action=f"Action: {action}", **fields)


TREE = TreeRow(
    **TASK,
    first_observation=FIRST,
    nodes=(
        node(1, 0, 1, "go to desk 1", source="expert"),
        node(2, 0, 1, EVIL, valid=False),
        node(3, 1, 2, "take mug 1", reward=1.0, terminated=True),
        node(4, 1, 2, "look"),
    ),
    draws=3,
    values={"visits": (3, 1, 2, None), "mcts": (0.75, 0.25, 1.0, None)},
)


LABELS = TREE.model_copy(update={"values": {"q": (0.81, 0.05, 0.9, 0.1)}})


GROUPS = groups_row(
    ([candidate("Action: wait", (0.0, 9)), candidate("Action: go", (1.0, 3))], 1),
    ([candidate("Action: take", (1.0, 1), reward=1.0, terminated=True)], 0),
    **TASK,
    first_observation=FIRST,
)


def written(file: Path, *rows: BaseModel | str) -> str:
    lines = [row if isinstance(row, str) else row.model_dump_json() for row in rows]
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def opened(page: Page, *files: str, status: str) -> None:
    page["tab-records"].click()
    page["files"].send_keys("\n".join(files))
    page.until(lambda: page.text("records-status") == status)


def rows(page: Page) -> list[str]:
    return [text.replace("\n", " ") for text in page.texts("#tree-list .node")]


def test_a_tree_is_drawn_with_the_searchs_values_and_its_labels(page: Page, tmp_path: Path) -> None:
    asked = page.run("performance.getEntriesByType('resource').length")
    trees, labels = tmp_path / "trees.jsonl", tmp_path / "labels.jsonl"
    opened(page, written(trees, TREE), written(labels, LABELS), status="0 episodes, 1 tree.")
    assert rows(page) == [
        "go to desk 1 expert label 0.810 Q 0.750",
        "take mug 1 ends, reward 1.00 label 0.900 Q 1.000",
        "look label 0.100",
        f"{EVIL} not understood label 0.050 Q 0.250",
    ]
    assert page["tree-first"].get_attribute("textContent") == FIRST
    assert page.text("tree-scale") == (
        "label (q): bars from 0 to 0.900 · Q (the search's mean outcome): bars from 0 to 1.000"
    )
    assert len(page.all("#tree-drawing circle.action")) == 4
    assert len(page.all("#tree-drawing path.edge")) == 4
    titles = [one.get_attribute("textContent") for one in page.all("#tree-drawing title")]
    assert titles[0] == "go to desk 1: 0.810"
    forks = page.all("#tree-list .forks")
    assert len(forks) == 2, "the tree branches at the root and after its first action"
    assert page.all("main img, main script") == []
    assert page.run("performance.getEntriesByType('resource').length") == asked, "sent nowhere"
    assert page.console() == []


@pytest.mark.slow
def test_labels_alone_are_a_tree(page: Page, tmp_path: Path) -> None:
    opened(page, written(tmp_path / "rows.jsonl", LABELS), status="0 episodes, 1 tree.")
    assert rows(page)[:2] == ["go to desk 1 expert label 0.810", "take mug 1 ends, reward 1.00 label 0.900"]
    assert page["tree-first"].get_attribute("textContent") == FIRST


@pytest.mark.slow
def test_decision_groups_are_a_path_with_its_other_candidates(page: Page, tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", GROUPS, TREE)
    opened(page, file, status="0 episodes, 2 trees.")
    Select(page["tree-choice"]).select_by_index(1)
    assert rows(page) == [
        "wait 9.0 steps to the end label 0.000",
        "go taken 3.0 steps to the end label 1.000",
        "take taken ends, reward 1.00 1.0 steps to the end label 1.000",
    ]
    assert "mean outcome of the roll-outs" in page.text("tree-scale")


def test_q_of_the_servers_model_is_asked_for_by_a_button_only(page: Page, tmp_path: Path) -> None:
    opened(page, written(tmp_path / "rows.jsonl", LABELS), status="0 episodes, 1 tree.")
    page["tree-score"].click()
    page.until(lambda: "scripted@0" in page.text("tree-scale"))
    assert [row.rpartition(" Q ")[2] for row in rows(page)] == ["0.750", "0.000", "0.250", "0.500"]
    assert page.console() == []


def test_rows_that_are_none_are_told_with_their_line(page: Page, tmp_path: Path) -> None:
    orphan = json.loads(TREE.model_dump_json())
    orphan["nodes"][0]["parent"] = 7
    group = json.loads(GROUPS.model_dump_json())
    group["nodes"][0]["rollouts"] = [{"steps": 5}]
    valued = json.loads(TREE.model_dump_json()) | {"values": {"q": [1.0]}}
    old = TASK | {"first_observation": FIRST, "decisions": [{"candidates": [], "chosen": 0}]}
    bad = [json.dumps(row) for row in (orphan, group, valued, old)]
    file = written(tmp_path / "rows.jsonl", *bad, "[]", "null", TREE)
    opened(page, file, status="0 episodes, 1 tree.")
    page["bad-count"].click()
    is_wrong = "is missing or not what it should be"
    assert page.texts("#bad-lines li") == [
        f"rows.jsonl, line 1: nodes {is_wrong}",
        f"rows.jsonl, line 2: nodes {is_wrong}",
        f"rows.jsonl, line 3: values {is_wrong}",
        "rows.jsonl, line 4: is a decision group of before; `qguide convert-records` makes it a tree",
        "rows.jsonl, line 5: is no offer, tree, choice or row of choice-regret",
        "rows.jsonl, line 6: no object",
    ]
    binary = tmp_path / "picture.jsonl"
    binary.write_bytes(bytes(range(256)))
    opened(page, str(binary), status="0 episodes.")
    assert page.text("bad-count") == "2 lines left out"
    assert not page["forest"].is_displayed()
