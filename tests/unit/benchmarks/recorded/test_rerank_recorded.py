"""The rerank job: two folds of recorded candidates, scored by a real tiny Q model."""

from pathlib import Path

import pytest

from benchmarks.recorded.groups import run_recorded_groups
from benchmarks.recorded.rerank import RerankConfig, RerankedRow, RerankFold, run_rerank_recorded
from qguide.qnet.errors import ConfigError
from qguide.training.data.runs import RunFolder, read_rows
from qguide.training.environments.intercode_sql.bundle import InterCodeSqlConfig
from tests.unit.benchmarks.recorded.test_recorded_groups import configure


def write_fold(folder: Path, first_seed: int) -> Path:
    """One task's candidates."""
    folder.mkdir()
    config = configure(folder, environment=InterCodeSqlConfig(first_seed=first_seed, count=1), turns="all")
    text = config.episodes.read_text()
    config.episodes.write_text(text.replace('"task_id": 0', f'"task_id": {first_seed}'))
    run_recorded_groups(config)
    return config.output


def test_a_q_model_and_its_policy_choose_beside_the_baselines(tmp_path: Path) -> None:
    folds = tuple(
        RerankFold(groups=write_fold(tmp_path / str(seed), seed), qnets=("embedded",), policy="embedded")
        for seed in (0, 1)
    )
    config = RerankConfig(folds=folds, output=tmp_path / "reranked")
    means = run_rerank_recorded(config)
    rows = list(read_rows(RunFolder(config.output).rows, RerankedRow))
    assert [row.task_id for row in rows] == ["library/0", "library/1"]
    assert [row.fold for row in rows] == [1, 2]
    for row in rows:
        [q_values] = row.q_values
        assert row.methods["q"] == row.rewards[q_values.index(max(q_values))]
    assert means["oracle"] == 1
    assert set(means) >= {"likeliest", "majority-then-q", "best-run"}
    assert run_rerank_recorded(config) == means


def test_the_best_run_of_a_single_test_fold_is_chosen_on_its_training_folds(tmp_path: Path) -> None:
    test, training = (write_fold(tmp_path / str(seed), seed) for seed in (0, 1))
    folds = (RerankFold(groups=test),)
    with pytest.raises(ValueError, match=r"fold .*training"):
        RerankConfig(folds=folds, output=tmp_path / "alone")
    config = RerankConfig(folds=folds, training=(training,), output=tmp_path / "reranked")
    means = run_rerank_recorded(config)
    both = RerankConfig(folds=(*folds, RerankFold(groups=training)), output=tmp_path / "both")
    run_rerank_recorded(both)
    [row] = read_rows(RunFolder(config.output).rows, RerankedRow)
    assert row == next(iter(read_rows(RunFolder(both.output).rows, RerankedRow)))
    assert means["best-run"] == row.methods["best-run"]
    with pytest.raises(ConfigError, match=r"library/0 .*two .*folds"):
        run_rerank_recorded(RerankConfig(folds=folds, training=(test,), output=tmp_path / "same"))


def test_a_task_in_two_folds_is_refused(tmp_path: Path) -> None:
    fold = RerankFold(groups=write_fold(tmp_path / "0", 0))
    with pytest.raises(ConfigError, match=r"library/0 .*two .*folds"):
        run_rerank_recorded(RerankConfig(folds=(fold, fold), output=tmp_path / "reranked"))
