"""A judge's scores of served candidates are labels, those of candidates not taken included."""

from pathlib import Path
from typing import Any

import pytest

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import TreeRow
from qguide.training.data.records import tree_from_row
from qguide.training.data.runs import JsonlWriter, read_rows
from qguide.training.jobs.label import LabelConfig, run_label

JUDGE = "q@judge-1"


Score = tuple[int, str, float]
"""A candidate's parent, its action, and its score."""


def row(*actions: str, reward: float = 1.0, scores: list[Score], judges: tuple[str, ...] = (JUDGE,)) -> TreeRow:
    """One episode of these actions, and the scores of its candidates, the same of each judge."""
    nodes: list[dict[str, Any]] = [
        {"id": i, "parent": i - 1, "depth": i, "action": a, "observation": f"o{i}", "source": "p"}
        for i, a in enumerate(actions, start=1)
    ]
    nodes[-1] |= {"reward": reward, "terminated": True}
    column: dict[int, float] = {}
    for parent, action, q in scores:
        if actions[parent : parent + 1] == (action,):
            column[parent + 1] = q
            continue
        column[len(nodes) + 1] = q
        place = {"id": len(nodes) + 1, "parent": parent, "depth": parent + 1, "tried": False}
        nodes.append(place | {"action": action, "observation": "", "source": "p"})
    values = [column.get(number) for number in range(1, len(nodes) + 1)]
    task = {"task_id": "t", "kind": "served", "environment": "served", "draws": 1}
    columns = {f"judge:{judge}": values for judge in judges} if scores else {}
    fields = {"first_observation": "task", "nodes": nodes, "values": columns}
    return TreeRow.model_validate(task | fields)


def label(folder: Path, *rows: TreeRow, **config: Any) -> TreeRow:
    with JsonlWriter(folder / "trees.jsonl") as writer:
        writer.write(*rows)
    fields = {"trees": (folder / "trees.jsonl",), "output": folder / "labels", "target": "judge"}
    run_label(LabelConfig.model_validate(fields | config))
    [labelled] = read_rows(folder / "labels" / "rows.jsonl", TreeRow)
    return labelled


def scores_of(labelled: TreeRow) -> dict[tuple[str, ...], float]:
    """Score of each labelled action, by all actions up to it."""
    tree = tree_from_row(labelled)
    [labels] = tree.values.values()
    return {tuple(node.step.action for node in tree.path(node_id)): q for node_id, q in labels.items()}


def test_every_candidate_has_its_score_in_its_state(tmp_path: Path) -> None:
    scores = [(0, "a", 0.5), (0, "b", 0.2), (1, "c", 1.0), (1, "d", 0.0)]
    labelled = label(tmp_path, row("a", "c", scores=scores))
    assert scores_of(labelled) == {("a",): 0.5, ("b",): 0.2, ("a", "c"): 1.0, ("a", "d"): 0.0}
    seen = {node.action: node.observation for node in labelled.nodes if node.tried}
    assert seen == {"a": "o1", "c": "o2"}, "nothing was observed after the others"


def test_episodes_of_a_task_are_one_tree_and_repeated_scores_their_mean(tmp_path: Path) -> None:
    first = row("a", scores=[(0, "a", 0.4), (0, "b", 0.2)])
    second = row("b", reward=0.0, scores=[(0, "a", 0.6), (0, "b", 0.2)])
    labelled = label(tmp_path, first, second)
    assert scores_of(labelled) == {("a",): pytest.approx(0.5), ("b",): pytest.approx(0.2)}
    assert [node.tried for node in labelled.nodes] == [True, True]


def test_scores_of_an_episode_that_was_recorded_again_count_once(tmp_path: Path) -> None:
    first = row("a", scores=[(0, "a", 0.4), (0, "b", 0.2)]).model_copy(update={"episode": "1"})
    second = row("b", reward=0.0, scores=[(0, "a", 0.6), (0, "b", 0.2)]).model_copy(update={"episode": "2"})
    labelled = label(tmp_path, first, second, first)
    assert scores_of(labelled) == {("a",): pytest.approx(0.5), ("b",): pytest.approx(0.2)}


def test_an_action_of_the_agents_own_has_no_label(tmp_path: Path) -> None:
    labelled = label(tmp_path, row("own", "c", scores=[(0, "a", 0.4), (1, "c", 0.9)]))
    assert scores_of(labelled) == {("a",): 0.4, ("own", "c"): 0.9}


def test_scores_change_no_label_of_another_target(tmp_path: Path) -> None:
    labelled = label(tmp_path, row("a", scores=[(0, "b", 0.2)]), target="avg")
    assert scores_of(labelled) == {("a",): 1.0}


def test_judges_are_never_mixed(tmp_path: Path) -> None:
    both = row("a", scores=[(0, "a", 0.4)], judges=(JUDGE, "q@judge-2"))
    with pytest.raises(ConfigError, match=r"\(q@judge-1, q@judge-2\); .*judge"):
        label(tmp_path, both)
    assert scores_of(label(tmp_path / "other", both, judge="q@judge-2")) == {("a",): 0.4}
    with pytest.raises(ConfigError, match=r"judge is 'x', .* q@judge-1, q@judge-2$"):
        label(tmp_path / "x", both, judge="x")


def test_trees_without_a_judge_are_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="QGUIDE_EPISODES_DIR"):
        label(tmp_path, row("a", scores=[]))
    other = row("a", scores=[]).model_copy(update={"values": {"no judge:x": (0.5,)}})
    with pytest.raises(ConfigError, match="QGUIDE_EPISODES_DIR"):
        label(tmp_path / "other", other)
