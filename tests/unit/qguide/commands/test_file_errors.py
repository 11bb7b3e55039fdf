"""Faults of files end a command with a line that names the remedy, never with a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from qguide.cli import app
from qguide.commands.errors import shown_errors
from qguide.qnet.records import TreeRow
from qguide.training.data.runs import JsonlWriter, read_rows
from tests.support.serving import ROOT

RUN = CliRunner()
TREE = ROOT / "tests" / "data" / "trees" / "partial_rewards.json"

PIPELINE = """
output = "{output}"

[stages.labels]
job = "label"
config = "{config}"
"""


def label_job(folder: Path, output: str = "labels") -> Path:
    """A job file of `label` over a tree."""
    job = folder / "label.toml"
    rows = folder / "rows.jsonl"
    rows.write_text(json.dumps(json.loads(TREE.read_text())["tree"]))
    job.write_text(f'trees = ["{rows}"]\noutput = "{folder / output}"\n')
    return job


def pipeline(folder: Path, *, output: str, config: str) -> Path:
    path = folder / "pipeline.toml"
    path.write_text(PIPELINE.format(output=output, config=config))
    return path


def refused(*arguments: str) -> str:
    done = RUN.invoke(app, list(arguments))
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (1, 2)
    return done.output


def test_a_nul_in_a_name_is_refused(tmp_path: Path) -> None:
    job = label_job(tmp_path)
    path = pipeline(tmp_path, output="a\\u0000b", config=str(job))
    assert "output = 'a\\x00b' has a NUL character; remove it" in refused("run", str(path))
    path = pipeline(tmp_path, output=str(tmp_path / "run"), config="a\\u0000b")
    assert "stages.labels.config = 'a\\x00b' has a NUL" in refused("run", str(path))
    assert "NUL" in refused("label", "--config", str(job), "--set", 'output="a\\u0000b"')


def test_a_job_file_without_an_end_is_refused(tmp_path: Path) -> None:
    path = pipeline(tmp_path, output=str(tmp_path / "run"), config="/dev/zero")
    assert "/dev/zero has more than 4,194,304 bytes" in refused("run", str(path))
    assert "/dev/zero has more than 4,194,304 bytes" in refused("run", "/dev/zero")
    assert "/dev/zero has more than 4,194,304 bytes" in refused("label", "--config", "/dev/zero")


def test_a_job_file_of_very_many_levels_is_refused(tmp_path: Path) -> None:
    job = tmp_path / "label.toml"
    job.write_text("trees = " + "[" * 100_000)
    assert "nested too deeply" in refused("label", "--config", str(job))


def test_an_output_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    job = label_job(tmp_path)
    path = pipeline(tmp_path, output="/dev/full", config=str(job))
    assert "/dev/full: File exists; name another place" in refused("run", str(path))
    assert "/dev/full: File exists" in refused("label", "--config", str(job), "--set", "output=/dev/full")


def test_a_full_disk_is_named_with_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, shown_errors(), JsonlWriter(Path("/dev/full")) as writer:
        writer.write({"row": 1})
    assert ended.value.exit_code == 1
    said = capsys.readouterr().err
    assert "/dev/full: No space left on device; free space, and run the same command again" in said


def test_an_error_that_is_no_files_keeps_its_traceback() -> None:
    with pytest.raises(ConnectionRefusedError), shown_errors():
        raise ConnectionRefusedError(111, "Connection refused")


def test_a_job_whose_file_may_not_grow_goes_on_later(tmp_path: Path) -> None:
    job = label_job(tmp_path)
    command = [sys.executable, "-m", "qguide", "label", "--config", str(job)]
    full = subprocess.run(
        ["/bin/bash", "-c", f"ulimit -f 1; exec {' '.join(command)}"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert full.returncode == 1
    assert "File too large; raise the limit of file sizes" in full.stderr
    assert "Traceback" not in full.stderr
    assert RUN.invoke(app, ["label", "--config", str(job)]).exit_code == 0
    assert len(list(read_rows(tmp_path / "labels" / "rows.jsonl", TreeRow))) >= 1


def test_a_run_folder_that_is_inspected_names_the_model_in_it(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "config.json").write_text("{}")
    result = RUN.invoke(app, ["inspect", str(tmp_path)])
    assert result.exit_code == 1
    assert f"run folder and no model; name the model in it, {tmp_path / 'checkpoint'}" in result.output
