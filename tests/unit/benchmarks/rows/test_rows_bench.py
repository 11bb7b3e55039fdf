"""`python -m benchmarks rows` measures each job over each corpus."""

import subprocess
import sys
from pathlib import Path

import pytest
import ray

from benchmarks.rows.rows import RowsBench, RowsRun, process_cost, rows_bench, tree_lines, watching_ray, writing_s
from qguide.qnet.errors import ConfigError
from qguide.qnet.records import TreeRow
from qguide.training.configs.job_files import load_config
from qguide.training.data.runs import read_rows


def test_a_job_is_measured_over_a_corpus(tmp_path: Path) -> None:
    told = list[str]()
    jobs = "label,groups"
    options = {"output": tmp_path / "run.json", "rows": "40", "jobs": jobs, "folder": tmp_path}
    config = load_config(RowsBench, None, options=options)  # as the command does
    run = rows_bench(config, advance=told.append)
    assert told == ["label, 40 rows", "groups, 40 rows"]
    for row in run.jobs:
        assert row.peak_mib > 30
        assert row.cpu_s > 0
    assert run.complete
    assert run == RowsRun.model_validate_json(config.output.read_text())


@pytest.mark.parametrize("job", ["write", "lines"])
def test_the_writer_alone_writes_every_row_again(tmp_path: Path, job: str) -> None:
    options = {"output": tmp_path / "run.json", "rows": "1200", "jobs": job, "folder": tmp_path}
    config = load_config(RowsBench, None, options=options)
    corpus = tmp_path / "rows.jsonl"
    corpus.write_text("".join(tree_lines(config, 1200)))
    assert writing_s(corpus, tmp_path / "written", as_lines=job == "lines") > 0
    assert list(read_rows(tmp_path / "written", TreeRow)) == list(read_rows(corpus, TreeRow))
    [row] = rows_bench(config).jobs
    assert row.cpu_s == row.wall_s > 0


def test_a_command_that_fails_is_an_error() -> None:
    with pytest.raises(ConfigError, match="/bin/false "):
        process_cost(["/bin/false"])


def test_the_memory_of_who_measures_is_not_the_commands() -> None:
    held = bytearray(b"1") * 2**28
    assert process_cost(["/bin/true"])[1] < 100 < len(held) / 2**20


RAYLET = str(Path(ray.__file__).parent / "core" / "raylet")


@pytest.mark.parametrize(
    ("name", "worker"), [("ray::_results", True), (RAYLET, False), ("/home/x-ray/raylet", None), ("other", None)]
)
def test_what_a_worker_of_ray_held_is_told_after_it_let_go_of_it(name: str, worker: bool | None) -> None:
    held = "held = bytearray(b'1') * 2**28; del held; import time; time.sleep(0.5)"
    with watching_ray(0.1) as found:
        subprocess.run([name, "-S", "-c", held], executable=sys.executable, check=True)
    most = [mib for _, mib in found.values()]
    assert most == [] if worker is None else [mib > 256 for mib in most] == [worker]
