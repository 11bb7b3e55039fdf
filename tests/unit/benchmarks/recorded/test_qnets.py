"""QNets from scratch on small recordings of several models."""

import json
from pathlib import Path

import pytest

from benchmarks.recorded.qnets import QNetRecordedConfig, run_qnet_recorded
from qguide.training.data.runs import RunFolder
from tests.support.recordings.llms import mint_episodes


def test_a_qnet_from_scratch_chooses_in_the_groups_of_choose_recorded(tmp_path: Path) -> None:
    mint_episodes(tmp_path / "mint.jsonl", ("gpt-a", "gpt-b", "claude-a", "claude-b", "llama-a"), tasks=24)
    config = QNetRecordedConfig(
        source=(tmp_path / "mint.jsonl",),
        output=tmp_path / "out",
        candidates=4,
        draws=3,
        observed=True,
        task_folds=2,
        folds=1,
        trainings=(0,),
        chars=120,
    )
    means = run_qnet_recorded(config)
    assert means["random"] < means["q 0"] <= means["oracle"]
    rows = [json.loads(line) for line in RunFolder(config.output).rows.read_text().splitlines()]
    assert len({row["task_id"] for row in rows}) == len(rows) == 12
    told = json.loads(RunFolder(config.output).metrics.read_text())
    assert told["q - random"][0] == pytest.approx(means["q 0"] - means["random"])
