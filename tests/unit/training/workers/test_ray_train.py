"""The example of Ray Train in docs/train/hardware.md."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import blocks_of
from tests.support.echo import labels_in
from tests.support.serving import ROOT
from tests.support.tiny_models import save_policy

CONFIG = """
labels = ["labels"]
trunk = "policy"
output = "qnet"

[optimization]
batch_tokens = 80
micro_batch_tokens = 40
device = "cpu"
threads = 1
"""


@pytest.mark.slow
def test_a_job_trains_in_two_workers_of_ray_train(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    save_policy(tmp_path / "policy")
    labels_in(tmp_path / "labels")
    (tmp_path / "train.toml").write_text(CONFIG)
    [example] = (block.text for block in blocks_of("docs/train/hardware.md") if block.language == "python")
    program = tmp_path / "train.py"
    program.write_text(example.replace("num_workers=4", "num_workers=2"))
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_worker_niceness": "0"}
    any_disk = {"RAY_local_fs_capacity_threshold": "1"}  # however full the machine's is
    environment = (
        os.environ | quiet | any_disk | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    )
    done = subprocess.run(
        [sys.executable, program.name], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "world_rank=1" in done.stdout + done.stderr
    rows = [json.loads(row) for row in (tmp_path / "qnet" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == len(rows)
    assert (tmp_path / "qnet" / "checkpoint" / "manifest.json").is_file()
