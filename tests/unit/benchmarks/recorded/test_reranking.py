"""Each way to choose among recorded candidates, on tasks that can be reckoned by hand."""

import pytest

from benchmarks.recorded.reranking import RankedTask, method_rewards, rerank_figures
from qguide.qnet.records import NodeRow
from tests.support.decision_groups import candidate as with_ends
from tests.support.decision_groups import groups_row


def candidate(action: str, observation: str, reward: float, *sources: str, valid: bool = True) -> NodeRow:
    facts = {"count": len(sources), "observation": observation, "reward": reward, "valid": valid}
    return with_ends(action, (reward, 2), sources=sources, **facts)


def task(name: str, fold: int, *candidates: NodeRow, q: tuple[tuple[float, ...], ...] = ()) -> RankedTask:
    return RankedTask(groups_row((candidates, 0), task_id=name), fold, q_values=q)


TWO_AGREE = task(
    "two agree",
    0,
    candidate("SELECT a", "[(1,)]", 1.0, "good"),
    candidate("SELECT  A;", "[(1,)]", 1.0, "fair"),
    candidate("SELECT b", "[(2,)]", 0.2, "bad"),
    candidate("SELECT c", "Error", 0.0, "worst", valid=False),
    q=((0.1, 0.2, 0.9, 0.0), (0.3, 0.3, 0.1, 0.0)),
)
ALL_DIFFER = task(
    "all differ",
    1,
    candidate("SELECT a", "[(1,)]", 0.0, "good"),
    candidate("SELECT b", "[(2,)]", 1.0, "fair"),
    candidate("SELECT c", "[(3,)]", 0.5, "bad"),
    candidate("SELECT d", "Error", 0.0, "worst", valid=False),
    q=((0.1, 0.8, 0.2, 0.9), (0.1, 0.2, 0.3, 0.9)),
)


def test_every_method_on_two_tasks() -> None:
    rewards = method_rewards([TWO_AGREE, ALL_DIFFER])
    assert rewards == {
        "random": pytest.approx([0.55, 0.375]),
        # By the second task alone "fair" is best; by the first alone "fair" and "good" are.
        "best-run": [1.0, 0.5],
        "majority-by-text": [1.0, 0.375],
        "majority-by-result": [1.0, 0.5],
        "majority-then-best-run": [1.0, 0.5],
        "q": pytest.approx([0.6, 0.0]),
        "q-of-mean": pytest.approx([0.2, 0.0]),
        "majority-then-q": pytest.approx([1.0, 0.75]),
        "majority-then-q-of-mean": [1.0, 1.0],
        "q-weighted-majority": pytest.approx([0.6, 0.0]),
        "q-weighted-majority-of-mean": pytest.approx([0.2, 0.0]),
        "oracle": [1.0, 1.0],
    }


def test_errors_do_not_agree_with_each_other() -> None:
    failing = task(
        "errors",
        0,
        candidate("SELECT a", "Error", 0.0, "one", "two", valid=False),
        candidate("SELECT b", "[(1,)]", 1.0, "three"),
    )
    rewards = method_rewards([failing, ALL_DIFFER])
    assert rewards["majority-by-result"][0] == 1
    assert rewards["majority-by-text"][0] == 0


def test_without_q_models_there_are_baselines_alone() -> None:
    tasks = [task(t.row.task_id, t.fold, *t.candidates) for t in (TWO_AGREE, ALL_DIFFER)]
    assert set(method_rewards(tasks)) == {
        "random",
        "best-run",
        "majority-by-text",
        "majority-by-result",
        "majority-then-best-run",
        "oracle",
    }


def test_figures_are_paired_with_the_baselines() -> None:
    figures = rerank_figures([TWO_AGREE, ALL_DIFFER])
    assert figures["oracle"]["reward"] == 1
    assert figures["oracle"]["over_random"] == pytest.approx(1 - (0.55 + 0.375) / 2)
    assert figures["q"]["over_majority_by_result"] == pytest.approx(0.3 - 0.75)
    assert figures["q"]["low"] <= figures["q"]["reward"] <= figures["q"]["high"]
    assert "over_random" not in figures["random"]
    assert figures["oracle"]["over_folds"] == 1
