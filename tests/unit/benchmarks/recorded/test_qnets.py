"""QNets from scratch on small recordings of several models."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from benchmarks.recorded.qnets import QNetRecordedConfig, run_qnet_recorded
from qguide.training.choosing.choose_recorded import ChosenRow
from qguide.training.data.runs import RunFolder, read_rows
from tests.support.recordings.llms import mint_episodes


def test_qnets_from_scratch_choose_in_the_groups_of_choose_recorded(tmp_path: Path) -> None:
    models = tuple(f"{family}-{end}" for family in ("gpt", "claude", "llama", "qwen") for end in "ab")
    mint_episodes(tmp_path / "mint.jsonl", models, tasks=24)
    config = QNetRecordedConfig(
        source=(tmp_path / "mint.jsonl",),
        output=tmp_path / "out",
        candidates=3,
        draws=3,
        observed=True,
        task_folds=2,
        family_folds=2,
        folds=1,
        trainings=(0,),
        chars=120,
    )
    means = run_qnet_recorded(config)
    assert means["random"] < means["q"] <= means["oracle"]
    rows = list(read_rows(RunFolder(config.output).rows, ChosenRow))
    assert len({row.task_id for row in rows}) == len(rows) == 12
    told = json.loads(RunFolder(config.output).metrics.read_text())["all"]
    assert told["groups"] == 12 * config.draws * config.family_folds  # both halves of the families count
    [found] = [each for each in told["comparisons"] if each["other"] == "random"]
    assert found["difference"] == pytest.approx(means["q"] - means["random"], abs=2e-4)


@pytest.mark.parametrize("option", [{"words": False}, {"steps": 20}])
def test_options_of_the_small_q_model_are_refused(option: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=f"{next(iter(option))} .* choose-recorded"):
        QNetRecordedConfig.model_validate({"source": ["mint.jsonl"], "output": "out", **option})
