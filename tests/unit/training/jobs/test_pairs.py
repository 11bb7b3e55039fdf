"""The pairs job: pairs of decision groups, of trees and of episodes."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import NodeRow, TreeRow
from qguide.qnet.types import Message
from qguide.training.data.preferences import PreferenceRow
from qguide.training.data.runs import JsonlWriter, RunFolder, read_rows
from qguide.training.data.trajectories import Trajectory
from qguide.training.jobs.pairs import PairsConfig, run_pairs
from qguide.training.trajectory import parse_action
from tests.support.decision_groups import candidate, groups_row

TASK: dict[str, Any] = {"task_id": "t", "kind": "k", "environment": "e"}


def write(folder: Path, *rows: Any) -> Path:
    with JsonlWriter(RunFolder(folder).rows) as writer:
        for row in rows:
            writer.write(row)
    return folder


def pairs_of(tmp_path: Path, **options: Any) -> list[PreferenceRow]:
    output = tmp_path / "pairs"
    run_pairs(PairsConfig(output=output, **options))
    return list(read_rows(RunFolder(output).rows, PreferenceRow))


def said(rows: list[PreferenceRow]) -> list[tuple[str, str]]:
    """The bare actions of each pair, those of a trajectory joined."""
    return [
        (
            "".join(parse_action(r.content) for r in row.chosen if r.role == "assistant"),
            "".join(parse_action(r.content) for r in row.rejected if r.role == "assistant"),
        )
        for row in rows
    ]


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    def does(letter: str, steps: int) -> NodeRow:
        return candidate(f"Action: {letter}", (1.0, steps), observation=f"did {letter}")

    row = groups_row(
        ([does("a", 4)], 0),
        ([does("b", 5), does("c", 3), does("d", 5)], 0),
        **TASK,
        first_observation="start",
        system="Be quick.",
    )
    return write(tmp_path / "groups", row)


def node(number: int, parent: int, depth: int, letter: str, reward: float | None) -> NodeRow:
    return NodeRow(
        id=number,
        parent=parent,
        depth=depth,
        action=f"Action: {letter}",
        observation=f"did {letter}",
        reward=reward or 0.0,
        terminated=reward is not None,
        source="policy",
    )


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    nodes = (
        node(1, 0, 1, "a", None),
        node(2, 1, 2, "b", 1.0),
        node(3, 0, 1, "c", 0.0),
        node(4, 1, 2, "d", 0.5),
        node(5, 1, 2, "e", 0.0),
    )
    return write(tmp_path / "trees", TreeRow(**TASK, first_observation="start", nodes=nodes, draws=4))


def test_candidates_of_a_state_are_compared_by_their_steps(tmp_path: Path, groups: Path) -> None:
    rows = pairs_of(tmp_path, groups=(groups,))
    assert said(rows) == [("c", "b"), ("c", "d")]
    first = rows[0]
    assert [m.content for m in first.messages] == ["Be quick.", "start", "Action: a", "did a"]
    assert (first.depth, first.candidates, first.source, first.level) == (1, 3, "group", "step")
    assert first.gap == pytest.approx(2 * 0.02)


def test_replies_of_older_groups_that_now_count_as_one_action_make_no_pair(tmp_path: Path) -> None:
    texts = ("Hm.\n```\nls\n```", "So.\n```\nls\n```", "Hm.\n```\npwd\n```")
    drawn = [candidate(text, (1.0, steps)) for text, steps in zip(texts, (4, 3, 5), strict=True)]
    row = groups_row((drawn, 0), **TASK, first_observation="start")
    rows = pairs_of(tmp_path, groups=(write(tmp_path / "groups", row),))
    assert [row.gap for row in rows] == [pytest.approx(0.02), pytest.approx(0.04)]


def test_a_margin_leaves_pairs_out(tmp_path: Path, groups: Path) -> None:
    with pytest.raises(ConfigError, match=r"lower min_label_margin \(0.05\)"):
        pairs_of(tmp_path, groups=(groups,), min_label_margin=0.05)


def test_the_best_path_of_a_tree_wins_against_the_sibling_of_lowest_q(tmp_path: Path, trees: Path) -> None:
    rows = pairs_of(tmp_path, trees=(trees,))
    assert said(rows) == [("a", "c"), ("b", "e")]
    assert [row.chosen_value for row in rows] == [pytest.approx(0.9), 1.0]
    assert [row.depth for row in rows] == [0, 1]


def test_an_action_of_the_best_path_is_worth_the_mean_of_its_answers(tmp_path: Path) -> None:
    lucky, unlucky = node(1, 0, 1, "a", 1.0), node(2, 0, 1, "a", 0.0)
    answered = unlucky.model_copy(update={"observation": "nothing", "count": 3})
    nodes = (lucky, answered, node(3, 0, 1, "b", 0.125))
    tree = write(tmp_path / "trees", TreeRow(**TASK, first_observation="start", nodes=nodes, draws=5))
    [row] = pairs_of(tmp_path, trees=(tree,), normalize=False)
    assert (row.chosen_value, row.rejected_value) == (0.25, 0.125)


def test_the_values_of_a_search_decide_where_they_are_asked_for(tmp_path: Path, trees: Path) -> None:
    [row] = read_rows(RunFolder(trees).rows, TreeRow)
    values = (0.5, 0.9, -1.0, 0.1, None)
    found = write(tmp_path / "found", row.model_copy(update={"values": {"mcts": values}}))
    rows = pairs_of(tmp_path, trees=(found,), target="mcts")
    assert said(rows) == [("a", "c"), ("b", "d")]  # e was never visited
    assert [row.rejected_value for row in rows] == [-1.0, 0.1]


def test_branches_of_a_tree_are_compared_by_their_outcome(tmp_path: Path, trees: Path) -> None:
    options: dict[str, Any] = {"step_pairs": False, "trajectory_pairs": True}
    rows = pairs_of(tmp_path / "1", trees=(trees,), **options)
    assert said(rows) == [("ab", "ae")]
    assert [m.content for m in rows[0].chosen] == ["Action: a", "did a", "Action: b"]
    assert len(pairs_of(tmp_path / "2", trees=(trees,), **options, most_per_task=0)) == 5


def episode(letters: str, reward: float, *, source: str = "policy") -> TreeRow:
    messages = [Message("user", "start")]
    for letter in letters:
        messages += [Message("assistant", f"Action: {letter}"), Message("user", "did")]
    return Trajectory(**TASK, messages=tuple(messages), reward=reward, source=source).to_row()


def test_episodes_of_a_task_are_compared_by_their_outcome(tmp_path: Path) -> None:
    expert = write(tmp_path / "expert", episode("ab", 1.0))
    own = write(tmp_path / "own", episode("acd", 0.0), episode("", 0.0))
    [row] = pairs_of(tmp_path, trajectories=(expert, own))
    assert said([row]) == [("ab", "acd")]
    assert (row.level, row.source, row.gap) == ("trajectory", "outcome", 1.0)


def test_against_the_expert_two_episodes_of_the_policy_are_no_pair(tmp_path: Path) -> None:
    expert = write(tmp_path / "expert", episode("ab", 0.5, source="expert"))
    own = write(tmp_path / "own", episode("c", 0.0), episode("d", 1.0), episode("e", 0.5))
    options: dict[str, Any] = {"trajectories": (expert, own), "most_per_task": 0}
    everything = pairs_of(tmp_path / "1", **options)
    assert len(everything) == 5
    rows = pairs_of(tmp_path / "2", **options, against_expert=True)
    assert said(rows) == [("ab", "c"), ("d", "ab")]  # the better policy wins, too
    assert [row for row in everything if row in rows] == rows


def test_an_episode_that_was_recorded_again_makes_no_more_pairs(tmp_path: Path) -> None:
    won, lost = (episode(one, reward).model_copy(update={"episode": one}) for one, reward in (("a", 1.0), ("b", 0.0)))
    served = write(tmp_path / "1", won, lost), write(tmp_path / "2", won)
    [row] = pairs_of(tmp_path / "pairs", trajectories=served, most_per_task=0)
    assert (row.gap, row.candidates) == (1.0, 2)


def test_nothing_to_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"groups, trees .*trajectories .*empty"):
        PairsConfig(output=tmp_path)
