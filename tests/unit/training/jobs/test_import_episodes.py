"""`qguide import`: records that the other jobs read, a report, and refusals that name lines."""

import errno
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from qguide.cli import app
from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.records import ROOT_ID, messages_of
from qguide.training.algorithms.backups import labels_of_actions
from qguide.training.data.preferences import PreferenceRow
from qguide.training.data.runs import read_rows
from qguide.training.data.task_trees import TaskTree, TaskTrees
from qguide.training.data.trajectories import read_trajectories
from qguide.training.jobs.export_data import ExportConfig, run_export_data
from qguide.training.jobs.import_episodes import ImportConfig, run_import
from qguide.training.jobs.pairs import PairsConfig, run_pairs
from qguide.training.optimization.packed_replies import reply_path
from tests.support.full_disk import files_end_at
from tests.support.recorded_episodes import (
    DESK,
    DESK_AGAIN,
    DONE,
    GIVE_UP,
    SHELF,
    calling,
    episode,
    imported,
    opened,
    result,
    trees,
    write,
)
from tests.support.tiny_models import renderer


def states(task: TaskTree) -> list[str]:
    """Every state of a tree with the action in it, as one text."""
    return [
        " ".join(message.content for message in (*task.tree.history(node.parent), node.step.message))
        for node in task.tree.nodes
    ]


def test_where_every_state_branches_more_tasks_are_asked_for(tmp_path: Path) -> None:
    replies = ((DONE, 1.0), (GIVE_UP, 0.0))
    rows = [episode(one, reward=r, task=task) for task in ("mug", "key") for one, r in replies]
    report = imported(tmp_path, rows)
    assert (report.states, report.branching_states, report.differing_groups) == (2, 2, 2)
    assert any("fewer than 50: record more tasks" in line for line in report.advice)


def test_episodes_of_one_task_become_a_tree(tmp_path: Path) -> None:
    rows = [
        episode(*DESK, DONE, reward=1.0),
        episode(*DESK_AGAIN, GIVE_UP, reward=0.0),
        episode(*SHELF, GIVE_UP, reward=0.0),
        episode(*DESK, DONE, reward=1.0, task="key"),
    ]
    report = imported(tmp_path, rows)
    mug, key = trees(tmp_path)
    assert [(node.parent, node.reward) for node in mug.nodes] == [(0, 0.0), (1, 1.0), (1, 0.0), (0, 0.0), (4, 0.0)]
    assert mug.system == "You find things."
    assert mug.nodes[0].action == 'First.\nAction: look({"place": "desk"})'
    assert mug.nodes[0].reply is not None
    assert mug.nodes[0].observed is not None
    assert key.task_id == "key"
    assert (report.episodes, report.tasks, report.tasks_with_one_episode) == (4, 2, 1)
    # The root and the state behind the desk branch; the key's episode has two states more.
    assert (report.states, report.branching_states, report.differing_groups) == (5, 2, 2)
    assert report.tool_calls == 4
    assert any("1 of 2 tasks have one episode" in line for line in report.advice)
    assert any("fewer than 50: draw several episodes" in line for line in report.advice)
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert written == report.model_dump(mode="json")


def test_trajectories_keep_every_message(tmp_path: Path) -> None:
    row = episode(*DESK, DONE, reward=1.0)
    imported(tmp_path, [row])
    (read,) = read_trajectories(tmp_path / "out" / "trajectories" / "rows.jsonl")
    assert [message.role for message in read.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert read.messages[2].tool_calls[0].name == "look"
    assert len(read.steps) == 2


def test_merged_again_by_label_the_tree_is_the_same(tmp_path: Path) -> None:
    rows = [episode(*DESK, DONE, reward=1.0), episode(*SHELF, GIVE_UP, reward=0.0)]
    imported(tmp_path, rows)
    folder = tmp_path / "out" / "trees"
    again = tmp_path / "again"
    again.mkdir()
    (row,) = trees(tmp_path)
    (again / "rows.jsonl").write_text(row.model_copy(update={"draws": 3}).model_dump_json() + "\n")
    (once,) = TaskTrees([folder], min_reward=0, max_reward=1)
    (twice,) = TaskTrees([folder, again], min_reward=0, max_reward=1)
    counted = [replace(node, count=2 * node.count if node in once.tree.leaves() else 1) for node in once.tree.nodes]
    assert twice.tree == replace(once.tree, nodes=tuple(counted))


def test_an_episode_that_another_continues_leaves_no_outcome_inside(tmp_path: Path) -> None:
    rows = [episode(*DESK, reward=0.25), episode(*DESK, DONE, reward=1.0)]
    report = imported(tmp_path, rows)
    (tree,) = trees(tmp_path)
    assert [node.reward for node in tree.nodes] == [0.0, 1.0]
    assert report.contained_episodes == 1


def test_rewards_of_equal_episodes_are_averaged(tmp_path: Path) -> None:
    rows = [episode(*DESK, DONE, reward=reward) for reward in (0.0, 1.0, 1.0, 0.0)]
    report = imported(tmp_path, rows)
    (tree,) = trees(tmp_path)
    assert tree.nodes[-1].reward == 0.5
    assert (report.repeated_episodes, report.disagreeing_episodes) == (3, 1)
    assert any("averaged" in line for line in report.advice)


def test_one_action_with_two_observations_is_two_nodes(tmp_path: Path) -> None:
    empty = result("look", "desk", "Nothing.")
    rows = [episode(*DESK, DONE, reward=1.0), episode(DESK[0], empty, GIVE_UP, reward=0.0)]
    report = imported(tmp_path, rows)
    (tree,) = trees(tmp_path)
    assert len(tree.nodes) == 4
    assert (report.uncertain_states, report.branching_states) == (1, 0)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("ended", [True, False])
def test_an_empty_result_is_another_state_than_an_error(tmp_path: Path, order: int, ended: bool) -> None:
    removed, denied = (result("look", "desk", text) for text in ("", "ERROR: denied"))
    rows = [
        episode(DESK[0], removed, *(() if ended else (DONE,)), reward=1.0),
        episode(DESK[0], denied, *(() if ended else (GIVE_UP,)), reward=0.0),
    ]
    report = imported(tmp_path, rows[::order])
    (tree,) = trees(tmp_path)
    reward_after = {
        row.observation: node.reward
        for node in tree.nodes
        if (row := tree.nodes[(node.parent or node.id) - 1]) and (ended or node.parent)
    }
    assert reward_after == {"": 1.0, "ERROR: denied": 0.0}
    assert report.uncertain_states == 1


@pytest.mark.parametrize("order", [1, -1])
def test_an_episode_without_its_last_result_leaves_the_reward_of_the_whole_one(tmp_path: Path, order: int) -> None:
    rows = [episode(DESK[0], reward=0.25), episode(DESK[0], result("look", "desk", ""), reward=1.0)]
    report = imported(tmp_path, rows[::order])
    (tree,) = trees(tmp_path)
    assert [node.reward for node in tree.nodes] == [1.0]
    assert report.contained_episodes == 1


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("stated", [{}, {"terminated": False}, {"terminated": True}])
@pytest.mark.parametrize(("format_", "observed"), [("messages", True), ("messages", False), ("atif", False)])
def test_an_end_that_a_recording_states_counts_in_one_file_and_in_several(
    tmp_path: Path, order: int, stated: dict[str, bool], format_: str, observed: bool
) -> None:
    """Asking wins and ends one episode, after the answer or without it; in another one the agent goes on and fails."""
    asked, answer = {"role": "assistant", "content": "Is it on the desk?"}, {"role": "user", "content": "No."}
    rows = [
        episode(asked, *([answer] if observed else ()), reward=1.0) | stated,
        episode(asked, answer, GIVE_UP, reward=0.0),
    ]
    if format_ == "atif":
        (tmp_path / "plain").mkdir()
        imported(tmp_path / "plain", rows)
        atif = tmp_path / "atif.jsonl"
        run_export_data(ExportConfig(source=tmp_path / "plain/out/trajectories", format="atif", output=atif))
        rows = [json.loads(line) for line in atif.read_text().splitlines()]
    imported(tmp_path, rows[::order])
    for number, row in enumerate(rows):
        (tmp_path / str(number)).mkdir()
        imported(tmp_path / str(number), [row])
    for folders in ([tmp_path / "out/trees"], [tmp_path / str(number) / "out/trees" for number in (0, 1)][::order]):
        (task,) = TaskTrees(folders, min_reward=0, max_reward=1)
        own = task.labels(target="avg", gamma=1.0, normalized=False)
        first = {labels_of_actions(task.tree, own)[node_id] for node_id in task.tree.children[ROOT_ID]}
        assert first == {0.5 if stated.get("terminated") else 0.0}


def test_other_first_messages_are_another_tree(tmp_path: Path) -> None:
    dated = episode(*SHELF, GIVE_UP, reward=0.0)
    dated["messages"][0] = {"role": "system", "content": "It is Monday."}
    report = imported(tmp_path, [episode(*DESK, DONE, reward=1.0), dated])
    ids = [tree.task_id for tree in trees(tmp_path)]
    assert len(set(ids)) == 2
    assert all(re.fullmatch("mug#[0-9a-f]{12}", task_id) for task_id in ids)
    assert report.split_tasks == 1


def test_a_task_named_like_a_split_one_keeps_its_own_tree(tmp_path: Path) -> None:
    rows = [opened("q1", "left", task="a"), opened("q2", "right", task="a"), opened("q3", "up", task="a#2")]
    imported(tmp_path, rows)
    found = TaskTrees([tmp_path / "out" / "trees"], min_reward=0, max_reward=1)
    assert len({task.row.task_id for task in found}) == 3
    assert [states(task) for task in found] == [["q1 left"], ["q2 right"], ["q3 up"]]


def test_imports_that_open_differently_are_labelled_apart(tmp_path: Path) -> None:
    folders = []
    for day, actions in {"Monday": ["left"], "Tuesday": ["up", "down"]}.items():
        (tmp_path / day).mkdir()
        imported(tmp_path / day, [opened(day, action, task="a") for action in actions])
        folders.append(tmp_path / day / "out" / "trees")
    found = TaskTrees(folders, min_reward=0, max_reward=1)
    assert [states(task) for task in found] == [["Monday left"], ["Tuesday up", "Tuesday down"]]
    assert len({task.row.task_id for task in found}) == 2


def test_the_tree_of_an_opening_is_the_same_in_every_import(tmp_path: Path) -> None:
    folders = []
    for number, days in enumerate([["Monday"], ["Tuesday", "Monday"]]):
        folder = tmp_path / str(number)
        folder.mkdir()
        imported(folder, [opened(day, f"go{number}", task="a") for day in days])
        folders.append(folder / "out" / "trees")
    found = TaskTrees(folders, min_reward=0, max_reward=1)
    assert [states(task) for task in found] == [["Monday go0", "Monday go1"], ["Tuesday go1"]]


def test_several_users_messages_open_an_episode(tmp_path: Path) -> None:
    row = episode(*DESK, DONE, reward=1.0)
    row["messages"].insert(2, {"role": "user", "content": "Be quick."})
    imported(tmp_path, [row])
    (tree,) = trees(tmp_path)
    assert [message.content for message in tree.opening] == ["Find the mug.", "Be quick."]


def test_imported_episodes_become_preference_pairs(tmp_path: Path) -> None:
    both = calling("look", "desk")
    both["tool_calls"] += calling("look", "shelf")["tool_calls"]
    seen = (both, DESK[1], SHELF[1])
    other = result("look", "desk", "Nothing.")
    rows = [
        episode(*seen, *SHELF, DONE, reward=1.0),
        episode(*seen, GIVE_UP, reward=0.0),
        episode(both, other, SHELF[1], GIVE_UP, reward=0.0),
        episode(*SHELF, GIVE_UP, reward=0.0),
    ]
    report = imported(tmp_path, rows)
    assert report.uncertain_states == 1
    run_pairs(
        PairsConfig(
            trees=(tmp_path / "out" / "trees",),
            trajectories=(tmp_path / "out" / "trajectories",),
            trajectory_pairs=True,
            most_per_task=0,
            output=tmp_path / "pairs",
        )
    )
    pairs = list(read_rows(tmp_path / "pairs" / "rows.jsonl", PreferenceRow))
    steps = [pair for pair in pairs if pair.level == "step"]
    assert [(pair.depth, pair.rejected[0].content) for pair in steps] == [
        (0, ""),  # the shelf, not the same two calls with another result
        (1, "I give up."),
    ]
    assert steps[0].rejected[0].tool_calls[0].arguments == '{"place": "shelf"}'
    assert {pair.source for pair in pairs} == {"best-path", "outcome"}
    for pair in pairs:
        whole = reply_path(renderer(), pair.history, messages_of(pair.chosen))
        assert whole.scored


def test_the_same_import_again_replaces_its_rows(tmp_path: Path) -> None:
    rows = [episode(*DESK, DONE, reward=1.0)]
    imported(tmp_path, rows)
    imported(tmp_path, [*rows, episode(*SHELF, reward=0.0)])
    assert len(trees(tmp_path)[0].nodes) == 3
    with pytest.raises(ConfigError, match=r": environment was 'imported' .*'other';"):
        imported(tmp_path, rows, environment="other")


def test_after_a_full_disk_other_options_can_be_chosen(tmp_path: Path) -> None:
    row = episode(*DESK, DONE, reward=1.0)
    row["messages"][1]["content"] = "x" * 100_000
    source, quiet = write(tmp_path, [row]), Console(file=io.StringIO())
    config = ImportConfig(source=source, output=tmp_path / "out")
    with files_end_at(50_000), pytest.raises(OSError, match=rf"\[Errno {errno.EFBIG}\]"):
        run_import(config, console=quiet)
    assert not list((tmp_path / "out").rglob("rows.*"))
    assert run_import(config.model_copy(update={"skip_bad": True}), console=quiet).episodes == 1


def test_the_command_prints_the_report(tmp_path: Path) -> None:
    source = write(tmp_path, [episode(*DESK, DONE, reward=1.0)])
    command = ["import", str(source), "--output", str(tmp_path / "out"), "--format", "messages"]
    shown = CliRunner().invoke(app, command, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    assert "branching states" in shown.output
    assert "1 of 1 tasks have one episode" in " ".join(shown.output.split())


def test_an_import_can_be_imported(tmp_path: Path) -> None:
    rows = [episode(*DESK, DONE, reward=1.0), episode(*SHELF, reward=0.0)]
    imported(tmp_path, rows)
    again = ImportConfig(source=tmp_path / "out", output=tmp_path / "again")
    assert run_import(again, console=Console(file=io.StringIO())).episodes == 2
    first, second = (tmp_path / name / "trajectories" / "rows.jsonl" for name in ("out", "again"))
    assert first.read_text() == second.read_text()


def test_where_a_line_is_cut_short_is_told(tmp_path: Path) -> None:
    source = tmp_path / "cut.jsonl"
    source.write_text('{"messages": []}\n{"messages": []\n')
    with pytest.raises(RecordError, match=r"cut\.jsonl, line 2: .*JSON: .* 16"):
        run_import(ImportConfig(source=source, format="messages", output=tmp_path / "out"))


def test_the_command_takes_a_job_file(tmp_path: Path) -> None:
    source = write(tmp_path, [episode(*DESK, DONE, reward=1.0), {"messages": None}])
    job = tmp_path / "import.toml"
    job.write_text(f'source = "{source}"\noutput = "{tmp_path / "out"}"\nskip_bad = true\n')
    command = ["import", "--config", str(job), "--set", "environment=house"]
    shown = CliRunner().invoke(app, command, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    assert trees(tmp_path)[0].environment == "house"


def test_a_command_without_a_source_says_so() -> None:
    shown = CliRunner().invoke(app, ["import", "--output", "nowhere"], catch_exceptions=False)
    assert shown.exit_code == 2
    assert "source" in shown.output
