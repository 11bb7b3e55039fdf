"""Episodes are written as paths of trees, and read back as they were."""

from dataclasses import replace
from pathlib import Path

import pytest

from qguide.qnet.errors import RecordError
from qguide.qnet.records import NodeRow, RolloutRow, TreeRow
from qguide.qnet.types import Message, ToolCall
from qguide.training.data.records import tree_from_row
from qguide.training.data.runs import JsonlWriter
from qguide.training.data.trajectories import Trajectory, best_trajectories, read_trajectories, trajectories_of
from qguide.training.trajectory import Drawn

HISTORY = (
    Message("system", "You find things."),
    Message("user", "Find the mug."),
    Message("assistant", "Action: look"),
    Message("user", "A mug."),
    Message("assistant", "", (ToolCall("take", '{"what": "mug"}', "c1"),)),
    Message("tool", "You won!", tool_call_id="c1"),
)
EPISODE = Trajectory(
    messages=HISTORY,
    reward=1.0,
    task_id="mug-1",
    terminated=True,
    kind="find",
    environment="kitchen",
    source="expert",
    mistakes=(0,),
    drawn=((Drawn(Message("assistant", "Action: look"), count=3, greedy=True),), ()),
    earned=(0.5, 1.0),
)


def test_an_episode_that_was_recorded_again_is_read_once(tmp_path: Path) -> None:
    for name in ("trees-1.jsonl", "trees-2.jsonl"):
        with JsonlWriter(tmp_path / name) as writer:
            writer.write(EPISODE.to_row().model_copy(update={"episode": "1"}), EPISODE.to_row())
    found = list(read_trajectories(tmp_path / "trees-1.jsonl", tmp_path / "trees-2.jsonl"))
    assert found == [replace(EPISODE, episode="1"), EPISODE, EPISODE]  # two are of no server


def test_an_episode_comes_back_from_its_line() -> None:
    row = TreeRow.model_validate_json(EPISODE.to_row().model_dump_json())
    assert list(trajectories_of(row)) == [EPISODE]


@pytest.mark.parametrize("end", [2, 5, 6])
def test_what_an_episode_ends_with_comes_back(end: int) -> None:
    whole = replace(EPISODE, messages=HISTORY[:end], mistakes=(), drawn=(), earned=())
    assert [found.messages for found in trajectories_of(whole.to_row())] == [HISTORY[:end]]


def test_the_outcome_stands_on_the_last_step() -> None:
    steps = EPISODE.steps
    assert [step.observation for step in steps] == ["A mug.", "You won!"]
    assert [(step.reward, step.terminated) for step in steps] == [(0.0, False), (1.0, True)]
    assert [len(step.drawn) for step in steps] == [1, 0]
    tree = tree_from_row(EPISODE.to_row())
    assert [node.step.reward for node in tree.nodes] == [0.0, 1.0]
    assert tree.values == {"earned": {1: 0.5, 2: 1.0}}


def test_an_episode_without_a_name_or_an_action_is_one_all_the_same() -> None:
    bare = Trajectory(HISTORY[:2], 0.0, "mug-1", terminated=False)
    row = bare.to_row(environment="imported")
    assert (row.environment, row.nodes) == ("imported", ())
    assert list(trajectories_of(row)) == [replace(bare, environment="imported")]


def test_each_path_of_a_tree_is_an_episode() -> None:
    def node(number: int, parent: int, depth: int, reward: float) -> NodeRow:
        return NodeRow(
            id=number,
            parent=parent,
            depth=depth,
            action=f"Action: {number}",
            observation="did",
            reward=reward,
            source="policy",
        )

    nodes = (node(1, 0, 1, 0.0), node(2, 1, 2, 1.0), node(3, 1, 2, 0.25))
    row = TreeRow(task_id="t", kind="", environment="e", first_observation="start", nodes=nodes, draws=2)
    assert [(len(one.replies), one.reward) for one in trajectories_of(row)] == [(2, 1.0), (2, 0.25)]
    rollout = RolloutRow(outcome_reward=1.0, steps=1, terminated=True)
    decided = nodes[0].model_copy(update={"rollouts": (rollout,)})
    with pytest.raises(RecordError, match=r"\bt .*`qguide collect`.*`qguide explore`"):
        list(trajectories_of(row.model_copy(update={"nodes": (decided,)})))


def test_a_reply_right_after_another_is_refused_and_not_answered_by_nothing() -> None:
    twice = replace(EPISODE, messages=(*HISTORY[:3], *HISTORY[4:]))
    with pytest.raises(RecordError, match=r"node 1 .*mug-1 .*observation"):
        list(trajectories_of(twice.to_row()))


def test_the_best_episode_of_a_task_is_the_first_of_the_highest_outcome(tmp_path: Path) -> None:
    rewards = (0.5, 1.0, 1.0)
    written = [replace(EPISODE, reward=r, source=f"agent {i}") for i, r in enumerate(rewards)]
    with JsonlWriter(tmp_path / "rows.jsonl") as writer:
        writer.write(*(one.to_row() for one in written))
    assert list(read_trajectories(tmp_path)) == written
    assert best_trajectories([tmp_path]) == {"mug-1": written[1]}
