"""Run folders after a kill, and their resumption."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from qguide.pipelines.summary import SummaryFile
from qguide.qnet.errors import ConfigError, RecordError
from qguide.training.data.row_files import sha256_of_rows
from qguide.training.data.runs import JsonlWriter, RunFolder, finished_task_ids, open_run, read_rows
from qguide.training.evaluation.results import read_results
from qguide.training.rollouts.usage import recorded_usage


class Row(BaseModel):
    task_id: str
    reward: float = 0.0


class Inner(BaseModel):
    width: int = 2


class Config(BaseModel):
    output: Path
    inner: Inner = Inner()
    parallel: int = 1


def write(path: Path, *task_ids: str) -> None:
    with JsonlWriter(path) as writer:
        for task_id in task_ids:
            writer.write(Row(task_id=task_id))


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", "one", "two")
    write(tmp_path / "rows.jsonl", "three")
    rows = read_rows(tmp_path / "rows.jsonl", Row)
    assert [row.task_id for row in rows] == ["one", "two", "three"]


def test_a_row_is_on_disk_before_the_next_is_written(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with JsonlWriter(path) as writer:
        writer.write({"task_id": "one"})
        assert finished_task_ids(path) == {"one"}


@pytest.mark.parametrize("torn", [b'{"task_id": "tw', b'{"task_id": "\xc3', b"{"])
def test_a_line_that_a_kill_cut_off_was_never_written(
    tmp_path: Path, torn: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rows.jsonl"
    write(path, "one")
    with path.open("ab") as file:
        file.write(torn)
    assert finished_task_ids(path) == {"one"}
    assert not caplog.messages  # a run that is resumed does that task again
    assert [row.task_id for row in read_rows(path, Row)] == ["one"]
    [warning] = caplog.messages
    assert f"{path} ends within line 2" in warning
    write(path, "two")
    assert [row.task_id for row in read_rows(path, Row)] == ["one", "two"]


def test_a_whole_last_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"task_id": "one"}')
    write(path, "two")
    assert [row.task_id for row in read_rows(path, Row)] == ["one", "two"]


def test_a_wrong_row_names_its_file_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"task_id": "one"}\n{"task_id": "two", "reward": "much"}\n')
    with pytest.raises(RecordError, match=r"rows\.jsonl, line 2: reward: .*Row"):
        list(read_rows(path, Row))


def test_a_torn_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"task_id": "one\n{"task_id": "two"}\n')
    with pytest.raises(RecordError, match="line 1"):
        finished_task_ids(path)


def test_a_missing_file_holds_no_finished_task_but_cannot_be_read(tmp_path: Path) -> None:
    assert finished_task_ids(tmp_path / "none.jsonl") == set()
    with pytest.raises(RecordError, match=r"none\.jsonl .*exist; .*job"):
        list(read_rows(tmp_path / "none.jsonl", Row))


def enter(folder: Path, config: BaseModel, **options: Any) -> RunFolder:
    """Open a run and close it again."""
    with open_run(folder, config, **options) as run:
        return run


def test_a_folder_takes_one_job_at_a_time(tmp_path: Path) -> None:
    config = Config(output=tmp_path)
    with open_run(tmp_path, config), pytest.raises(ConfigError, match=r"job .*output"):
        enter(tmp_path, config)
    assert enter(tmp_path, config).path == tmp_path


HOLDER = """
import sys, time
from pathlib import Path
from pydantic import BaseModel
from qguide.training.data.runs import open_run

class Config(BaseModel):
    pass

with open_run(Path(sys.argv[1]), Config()):
    print("working", flush=True)
    time.sleep(600)
"""


def test_a_job_that_was_killed_leaves_its_folder_open(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"working\n"
        with pytest.raises(ConfigError, match=r"job .*output"):
            enter(tmp_path, Inner())
        job.kill()
    assert enter(tmp_path, Inner(), may_change={"width"}).path == tmp_path


def test_a_new_run_writes_its_resolved_config(tmp_path: Path) -> None:
    run = enter(tmp_path / "run", Config(output=Path("run")))
    assert json.loads(run.config.read_text()) == {"output": "run", "inner": {"width": 2}, "parallel": 1}


def test_a_resume_may_change_what_does_not_change_the_rows(tmp_path: Path) -> None:
    may_change = frozenset({"output", "parallel"})
    enter(tmp_path, Config(output=Path("a")), may_change=may_change)
    run = enter(tmp_path, Config(output=Path("b"), parallel=8), may_change=may_change)
    assert run.rows == tmp_path / "rows.jsonl"


def test_a_resume_under_another_config_names_the_field_and_both_values(tmp_path: Path) -> None:
    run = enter(tmp_path, Config(output=tmp_path))
    write(run.metrics, "one")
    with pytest.raises(ConfigError, match=r": inner\.width was 2 .* 3; "):
        enter(tmp_path, Config(output=tmp_path, inner=Inner(width=3)))


def test_a_run_that_failed_before_it_wrote_anything_starts_under_another_config(tmp_path: Path) -> None:
    run = enter(tmp_path, Config(output=tmp_path))
    run.metrics.touch()
    enter(tmp_path, Config(output=tmp_path, inner=Inner(width=3)))
    assert json.loads(run.config.read_text())["inner"] == {"width": 3}
    (tmp_path / "state-000001").mkdir()
    with pytest.raises(ConfigError, match=r": inner\.width was 3 .* 2; "):
        enter(tmp_path, Config(output=tmp_path))


def test_rows_without_a_config_are_not_taken_for_a_run(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", "one")
    with pytest.raises(ConfigError, match=r"rows\.jsonl .*config\.json, .*resumed"):
        enter(tmp_path, Config(output=tmp_path))


@pytest.mark.parametrize("name", ["rows.jsonl", "metrics.jsonl", "config.json", "checkpoint/x.json"])
def test_a_run_with_a_file_that_has_no_end_is_not_resumed(tmp_path: Path, name: str) -> None:
    """Reading /dev/full never ends and takes all memory; reading a pipe never begins."""
    config = Config(output=tmp_path)
    with open_run(tmp_path, config) as run:
        write(run.rows, "one")
    place = tmp_path / name
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to("/dev/full")
    with pytest.raises(ConfigError, match=f"{name} .*device .*pipe"), open_run(tmp_path, config):
        pass
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(ConfigError, match=r"json.* .*device .*pipe"), open_run(tmp_path, config):
        pass


@pytest.mark.parametrize(
    "read",
    [
        lambda run: list(read_rows(run.rows, Row)),
        lambda run: sha256_of_rows([run.path]),
        lambda run: recorded_usage(run.metrics),
        lambda run: read_results(run.path),
        lambda run: SummaryFile(run.path),
    ],
    ids=["rows", "hash of rows", "usage", "results", "summary"],
)
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_a_file_of_a_run_that_has_no_end_is_not_read(
    tmp_path: Path, read: Callable[[RunFolder], object], kind: str
) -> None:
    for name in ("rows.jsonl", "metrics.jsonl", "results.json", "summary.json"):
        if kind == "device":
            (tmp_path / name).symlink_to("/dev/full")
        else:
            os.mkfifo(tmp_path / name)
    with pytest.raises(RecordError, match=r"json.* .*device .*pipe;"):
        read(RunFolder(tmp_path))
