"""`python -m benchmarks rows` measures each job over each corpus."""

from pathlib import Path

import pytest

from benchmarks.rows.rows import RowsBench, RowsRun, process_cost, rows_bench
from qguide.qnet.errors import ConfigError
from qguide.training.configs.job_files import load_config


def test_a_job_is_measured_over_a_corpus(tmp_path: Path) -> None:
    told = list[str]()
    options = {"output": tmp_path / "run.json", "rows": "40", "jobs": "label", "folder": tmp_path}
    config = load_config(RowsBench, None, options=options)  # as the command does
    run = rows_bench(config, advance=told.append)
    [row] = run.jobs
    assert told == ["label, 40 rows"]
    assert row.peak_mib > 30
    assert row.cpu_s > 0
    assert run.complete
    assert run == RowsRun.model_validate_json(config.output.read_text())


def test_a_command_that_fails_is_an_error() -> None:
    with pytest.raises(ConfigError, match="false failed"):
        process_cost(["/bin/false"])
