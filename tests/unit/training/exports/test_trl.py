"""Exported records are data sets that `datasets` loads and TRL reads."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
from trl.data_utils import apply_chat_template, is_conversational
from typer.testing import CliRunner

from qguide.cli import app
from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.records import MessageRow, NodeRow, Row, TreeRow, messages_of
from qguide.training.data.preferences import PreferenceRow
from qguide.training.data.runs import JsonlWriter, read_rows
from qguide.training.data.trajectories import Trajectory
from qguide.training.exports.trl import conversation_pair
from qguide.training.jobs.export_data import ExportConfig, ExportFormat, run_export_data
from tests.support.decision_groups import candidate, groups_row
from tests.support.labels import labelled, row_of
from tests.support.tiny_models import renderer

pytestmark = pytest.mark.filterwarnings("default")  # datasets and TRL use deprecated functions

CALL = {"name": "look", "arguments": '{"at": "desk"}', "id": "c1"}
TASK = MessageRow(role="user", content="Find the mug.")
CALLING = MessageRow.model_validate({"role": "assistant", "content": "", "tool_calls": [CALL]})
SEEN = MessageRow(role="tool", content="A mug.", tool_call_id="c1")
DONE = MessageRow(role="assistant", content="It is on the desk.")
GIVE_UP = MessageRow(role="assistant", content="I give up.")
OF_TASK: dict[str, Any] = {"task_id": "mug", "kind": "", "environment": "imported"}


def trajectory(*messages: MessageRow, reward: float, **more: Any) -> TreeRow:
    """An episode of two actions."""
    return Trajectory(**OF_TASK, messages=messages_of(messages), reward=reward, source="agent", **more).to_row()


TRAJECTORIES = (
    trajectory(TASK, CALLING, SEEN, DONE, reward=1.0),
    trajectory(TASK, CALLING, SEEN, GIVE_UP, reward=0.0, mistakes=(1,)),
)
PAIR = PreferenceRow(
    **OF_TASK,
    level="step",
    source="best-path",
    messages=(TASK, CALLING, SEEN),
    chosen=(DONE,),
    rejected=(GIVE_UP,),
    chosen_value=1.0,
    rejected_value=0.0,
    depth=1,
)
PATHS = [
    [one.to_message() for one in (TASK, CALLING, SEEN, last)]
    for last in (DONE, GIVE_UP, MessageRow(role="assistant", content="Where is it?"))
]
LABELS = (row_of(labelled(*PATHS, labels={1: 0.9, 2: 1.0, 3: 0.0})),)


GROUPS = groups_row(
    ([candidate("Action: desk", (1.0, 1)), candidate("Action: no", (0.0, 1))], 0),
    **OF_TASK,
    first_observation="Find the mug.",
)
TREE = TreeRow(
    **OF_TASK,
    first_observation="Find the mug.",
    nodes=(
        NodeRow(
            id=1,
            parent=0,
            depth=1,
            action='Action: look({"at": "desk"})',
            observation="A mug.",
            source="agent",
            reply=CALLING,
            observed=(SEEN,),
        ),
    ),
    draws=1,
)


def exported(
    folder: Path, rows: Sequence[Row], format_: ExportFormat, *, suffix: str = ".jsonl", **more: Any
) -> list[dict[str, Any]]:
    """The rows of an export, as `datasets` loads them."""
    with JsonlWriter(folder / "rows.jsonl") as writer:
        for row in rows:
            writer.write(row)
    output = folder / f"out{suffix}"
    run_export_data(ExportConfig(source=folder, output=output, format=format_, **more))
    kind = "parquet" if output.suffix == ".parquet" else "json"
    cache = str(folder / "cache")
    loaded = datasets.load_dataset(kind, data_files=str(output), split="train", cache_dir=cache)
    return [dict(row) for row in loaded]


SUFFIXES = pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])


def test_a_mistake_in_the_chosen_side_of_a_pair_has_no_weight() -> None:
    whole = PAIR.model_copy(update={"level": "suffix", "chosen": (CALLING, SEEN, DONE), "mistakes": (0,)})
    assert [turn.weight for turn in conversation_pair(whole).chosen] == [0.0, None, None]


@SUFFIXES
def test_trajectories_are_conversations(tmp_path: Path, suffix: str) -> None:
    first, second = exported(tmp_path, TRAJECTORIES, "trl-sft", suffix=suffix)
    assert is_conversational(first)
    assert [turn["role"] for turn in first["messages"]] == ["user", "assistant", "tool", "assistant"]
    (call,) = first["messages"][1]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"at": "desk"}'}
    assert (first["reward"], first["task_id"]) == (1.0, "mug")
    assert second["messages"][-1]["weight"] == 0
    said = apply_chat_template({"messages": first["messages"]}, renderer().tokenizer)["text"]
    assert "It is on the desk." in said
    assert "None" not in said


def test_a_least_reward_selects_episodes(tmp_path: Path) -> None:
    assert len(exported(tmp_path, TRAJECTORIES, "trl-sft", min_reward=0.5)) == 1


@SUFFIXES
def test_pairs_are_preferences_with_a_prompt(tmp_path: Path, suffix: str) -> None:
    (row,) = exported(tmp_path, [PAIR], "trl-preference", suffix=suffix)
    assert is_conversational(row)
    sides = {name: row[name] for name in ("prompt", "chosen", "rejected")}
    text = apply_chat_template(sides, renderer().tokenizer)
    assert text["prompt"].endswith("<|assistant|>")
    assert text["chosen"].startswith("It is on the desk.")
    assert text["rejected"].startswith("I give up.")


@SUFFIXES
def test_labelled_paths_are_supervised_step_by_step(tmp_path: Path, suffix: str) -> None:
    rows = exported(tmp_path, LABELS, "trl-stepwise", suffix=suffix, threshold=0.6)
    assert [row["labels"] for row in rows] == [[True, True], [True, False], [True]]
    assert rows[0]["prompt"] == "Find the mug."
    assert rows[0]["completions"] == ['Action: look({"at": "desk"})', "A mug.\n\nIt is on the desk."]


def test_candidates_of_groups_are_single_steps(tmp_path: Path) -> None:
    rows = exported(tmp_path, [GROUPS], "trl-stepwise")
    assert [(row["completions"], row["labels"]) for row in rows] == [
        (["Action: desk"], [True]),
        (["Action: no"], [False]),
    ]


@pytest.mark.parametrize("row", [*TRAJECTORIES, PAIR, *LABELS, GROUPS, TREE], ids=lambda row: type(row).__name__)
def test_every_row_comes_back_from_parquet(tmp_path: Path, row: Row) -> None:
    exported(tmp_path, [row], "parquet", suffix=".parquet")
    assert list(read_rows(tmp_path / "out.parquet", type(row))) == [row]


def test_rows_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"TreeRow, .*trl-preference .*`qguide pairs`"):
        exported(tmp_path, TRAJECTORIES, "trl-preference")


@pytest.mark.parametrize(
    ("rows", "format_", "options", "message"),
    [
        (TRAJECTORIES, "parquet", {"min_reward": 1.0}, "min_reward .*trl-sft .*atif .*parquet"),
        (LABELS, "trl-stepwise", {"min_reward": 1.0}, "min_reward .*trl-sft .*atif .*trl-stepwise"),
        (TRAJECTORIES, "trl-sft", {"threshold": 0.9}, "threshold .*trl-stepwise .*trl-sft"),
        ([PAIR], "trl-preference", {"threshold": 0.9}, "threshold .*trl-stepwise .*trl-preference"),
        ([GROUPS], "parquet", {"group_labels": {}}, "group_labels .*trl-stepwise .*parquet"),
        (LABELS, "trl-stepwise", {"group_labels": {}}, "group_labels .*TreeRow; .*`qguide groups`"),
    ],
)
def test_an_option_that_would_not_be_used_is_refused(
    tmp_path: Path, rows: Sequence[Row], format_: ExportFormat, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        exported(tmp_path, rows, format_, **options)
    assert not list(tmp_path.glob("out*"))


def test_the_command_refuses_an_option_of_another_format(tmp_path: Path) -> None:
    with JsonlWriter(tmp_path / "rows.jsonl") as writer:
        writer.write(TRAJECTORIES[0])
    target = ["--output", str(tmp_path / "out.parquet"), "--format", "parquet"]
    command = ["export-data", str(tmp_path), *target]
    refused = CliRunner().invoke(app, [*command, "--min-reward", "1"], catch_exceptions=False)
    assert refused.exit_code == 2
    assert "min_reward is for trl-sft and atif only" in refused.output
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0


def test_rows_that_no_job_writes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "hello"}\n')
    config = ExportConfig(source=tmp_path, output=tmp_path / "out.jsonl", format="parquet")
    with pytest.raises(RecordError, match=r"rows\.jsonl, line 1: .*kind"):
        run_export_data(config)


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    exported(tmp_path, TRAJECTORIES, "trl-sft")
    with pytest.raises(ConfigError, match="exists"):
        exported(tmp_path, TRAJECTORIES, "trl-sft")


def test_nothing_to_export_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"row .*min_reward"):
        exported(tmp_path, TRAJECTORIES, "trl-sft", min_reward=2.0)
    assert not list(tmp_path.glob("out*"))


def test_the_command_exports(tmp_path: Path) -> None:
    with JsonlWriter(tmp_path / "rows.jsonl") as writer:
        writer.write(TRAJECTORIES[0])
    output = tmp_path / "sft.jsonl"
    command = ["export-data", str(tmp_path), "--output", str(output), "--format", "trl-sft"]
    shown = CliRunner().invoke(app, command, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    assert json.loads(output.read_text())["messages"][0] == {"role": "user", "content": "Find the mug."}
