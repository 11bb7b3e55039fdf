"""A judge's scores of served candidates are labels, those of candidates not taken included."""

from pathlib import Path
from typing import Any

import pytest

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import TreeRow
from qguide.training.data.records import LabelRow
from qguide.training.data.runs import JsonlWriter, read_rows
from qguide.training.jobs.label import LabelConfig, run_label

JUDGE = "q@judge-1"


def judged(parent: int, action: str, q: float, judge: str = JUDGE) -> dict[str, Any]:
    return {"parent": parent, "action": action, "q_value": q, "judge": judge}


def row(*actions: str, reward: float = 1.0, scores: list[dict[str, Any]]) -> TreeRow:
    """One episode of these actions, and the scores of its candidates."""
    nodes = [
        {"id": i, "parent": i - 1, "depth": i, "action": a, "observation": f"o{i}", "source": "p"}
        for i, a in enumerate(actions, start=1)
    ]
    nodes[-1] |= {"reward": reward, "terminated": True}
    task = {"task_id": "t", "kind": "served", "environment": "served", "draws": 1}
    fields = {"first_observation": "task", "nodes": nodes, "judged": scores}
    return TreeRow.model_validate(task | fields)


def label(folder: Path, *rows: TreeRow, **config: Any) -> list[LabelRow]:
    with JsonlWriter(folder / "trees.jsonl") as writer:
        writer.write(*rows)
    fields = {"trees": (folder / "trees.jsonl",), "output": folder / "labels", "target": "judge"}
    run_label(LabelConfig.model_validate(fields | config))
    return list(read_rows(folder / "labels" / "rows.jsonl", LabelRow))


def scores_of(rows: list[LabelRow]) -> dict[tuple[str, ...], float]:
    """Score of each labelled action, by all actions up to it."""
    found = {}
    for one in rows:
        actions = [m.content for m in one.messages if m.role == "assistant"]
        for number, q in enumerate(one.q_values, start=1):
            if q is not None:
                assert tuple(actions[:number]) not in found, "each label is in one row"
                found[tuple(actions[:number])] = q
    return found


def test_every_candidate_has_its_score_in_its_state(tmp_path: Path) -> None:
    scores = [judged(0, "a", 0.5), judged(0, "b", 0.2), judged(1, "c", 1.0), judged(1, "d", 0.0)]
    rows = label(tmp_path, row("a", "c", scores=scores))
    assert scores_of(rows) == {("a",): 0.5, ("b",): 0.2, ("a", "c"): 1.0, ("a", "d"): 0.0}
    [taken] = [one for one in rows if one.messages[-1].content == "c"]
    assert taken.last_observation == "o2"
    rest = [one for one in rows if one is not taken]
    assert [one.last_observation for one in rest] == [None, None], "nothing was observed there"


def test_episodes_of_a_task_are_one_tree_and_repeated_scores_their_mean(tmp_path: Path) -> None:
    first = row("a", scores=[judged(0, "a", 0.4), judged(0, "b", 0.2)])
    second = row("b", reward=0.0, scores=[judged(0, "a", 0.6), judged(0, "b", 0.2)])
    rows = label(tmp_path, first, second)
    assert scores_of(rows) == {("a",): pytest.approx(0.5), ("b",): pytest.approx(0.2)}
    assert {parent for one in rows for parent in one.parent_ids} == {0}


def test_an_action_of_the_agents_own_has_no_label(tmp_path: Path) -> None:
    rows = label(tmp_path, row("own", "c", scores=[judged(0, "a", 0.4), judged(1, "c", 0.9)]))
    assert scores_of(rows) == {("a",): 0.4, ("own", "c"): 0.9}


def test_scores_change_no_label_of_another_target(tmp_path: Path) -> None:
    rows = label(tmp_path, row("a", scores=[judged(0, "b", 0.2)]), target="avg")
    assert scores_of(rows) == {("a",): 1.0}


def test_judges_are_never_mixed(tmp_path: Path) -> None:
    scores = [judged(0, "a", 0.4), judged(0, "a", 0.9, judge="q@judge-2")]
    with pytest.raises(ConfigError, match=r"several judges \(q@judge-1, q@judge-2\)"):
        label(tmp_path, row("a", scores=scores))
    other = tmp_path / "other"
    assert scores_of(label(other, row("a", scores=scores), judge="q@judge-2")) == {("a",): 0.9}
    with pytest.raises(ConfigError, match="judge is 'x', but the trees have scores of"):
        label(tmp_path / "x", row("a", scores=scores), judge="x")


def test_trees_without_a_judge_are_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tree has a judge's scores; serve with a judge"):
        label(tmp_path, row("a", scores=[]))


def test_a_score_of_a_state_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="judged after node 3, but there are 1"):
        row("a", scores=[judged(3, "a", 0.4)])
