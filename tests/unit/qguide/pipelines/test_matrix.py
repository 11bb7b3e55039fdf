"""Matrices of a pipeline file: stages that are written once and repeated."""

from pathlib import Path

import pytest

from qguide.pipelines.config import PipelineConfig, load_pipeline
from qguide.qnet.errors import ConfigError

MATRIX = """
    output = "runs/pipeline"
    [matrix.left_out]
    term = ["outcome", "step"]
    weight = ["trajectory", "suffix"]
    [matrix.seeds]
    seed = [1, 2]
    [stages.first]
    job = "collect"
    config = "collect.toml"
    [stages."no_{term}"]
    matrix = "left_out"
    job = "train-dpo"
    config = "{term}.toml"
    set = ['weights={ {weight} = 0.5 }', "output=runs/no_{term}"]
    [stages."no_{term}_played"]
    matrix = "left_out"
    job = "evaluate"
    config = "evaluate.toml"
    needs = ["no_{term}"]
    [stages."seed_{seed}"]
    matrix = "seeds"
    job = "train-qnet"
    config = "train_qnet.toml"
    set = ["seed={seed}"]
    [stages.last]
    job = "collect"
    config = "collect.toml"
    set = ["name={output}/last"]
"""


def read(folder: Path, text: str, *overrides: str) -> PipelineConfig:
    (folder / "pipeline.toml").write_text(text)
    return load_pipeline(folder / "pipeline.toml", overrides)


def test_neighbours_of_one_matrix_are_repeated_together(tmp_path: Path) -> None:
    stages = read(tmp_path, MATRIX).stages
    assert list(stages) == [
        "first",
        *("no_outcome", "no_outcome_played"),
        *("no_step", "no_step_played"),
        *("seed_1", "seed_2"),
        "last",
    ]
    assert stages["no_step"].set == ("weights={ suffix = 0.5 }", "output=runs/no_step")
    assert stages["no_step"].config == tmp_path / "step.toml"
    assert stages["no_step_played"].needs == ("no_step",)
    assert stages["seed_2"].set == ("seed=2",)
    assert stages["last"].set == ("name=runs/pipeline/last",)


def test_a_repeated_stage_is_overridden_by_its_own_name(tmp_path: Path) -> None:
    stages = read(tmp_path, MATRIX, "no_step.name=other").stages
    assert stages["no_step"].set[-1] == "name=other"
    assert "name=other" not in stages["no_outcome"].set


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('matrix = "seeds"', 'matrix = "seed"', "'seed' is missing; the file has left_out, seeds"),
        ('term = ["outcome", "step"]', 'term = ["outcome"]', "'term': 1, 'weight': 2"),
        ("seed = [1, 2]", "seed = []", "at least 1"),
        ('set = ["seed={seed}"]', 'set = ["seed={sed}"]', "{sed}; name one of its values: output, seed"),
        ('"seed_{seed}"', '"seeds"', "two stages are called seeds"),
        ("[stages.last]", '[stages."no_step"]', "two stages are called no_step"),
        ("seed = [1, 2]", 'seed = ["a b", "c"]', "stage 'seed_a b'"),
        ("[stages.last]", '[stages."last_{term}"]', "stage last_{term} has {term}"),
        ('needs = ["no_{term}"]', 'needs = ["no_{weight}"]', "'no_trajectory'; name another"),
    ],
)
def test_a_matrix_that_cannot_be_written_out_is_refused(tmp_path: Path, before: str, after: str, message: str) -> None:
    assert before in MATRIX
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, MATRIX.replace(before, after))
    assert message in str(refused.value)


VALUES = """
    output = "runs/shop"
    [values]
    environment = "shop:SHOP"
    count = 96
    [stages.trees]
    job = "explore"
    set = ["environment.name={environment}", "environment.count={count}", "output={output}/trees"]
"""


def test_what_stages_share_is_replaced_by_name(tmp_path: Path) -> None:
    [stage] = read(tmp_path, VALUES).stages.values()
    assert stage.set == ("environment.name=shop:SHOP", "environment.count=96", "output=runs/shop/trees")
    [stage] = read(tmp_path, VALUES, "environment=other:SHOP", "trees.seed=1").stages.values()
    assert stage.set == ("environment.name=other:SHOP", "environment.count=96", "output=runs/shop/trees", "seed=1")
    moved = load_pipeline(tmp_path / "pipeline.toml", output=Path("elsewhere"))
    assert moved.stages["trees"].set[-1] == "output=elsewhere/trees"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("environment=a b", "stage 'trees_a b': use letters, digits, - and _"),
        ("environment", "names neither a stage nor a value; write stage.field=value, or NAME=value"),
    ],
)
def test_a_replaced_value_is_refused_as_one_of_the_file_is(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(
            tmp_path,
            VALUES.replace("stages.trees", 'stages."trees_{environment}"').replace("shop:SHOP", "shop"),
            override,
        )
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("{count}", "{counts}", "stage trees has {counts}; name one of its values: output, environment, count"),
        ("count = 96", "co-unt = 96", "'co-unt' is no name for a value; use letters, digits and _"),
        ("count = 96", 'output = "x"', "values.output is always the pipeline's own folder"),
    ],
)
def test_a_value_that_is_missing_is_refused(tmp_path: Path, before: str, after: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, VALUES.replace(before, after))
    assert message in str(refused.value)
