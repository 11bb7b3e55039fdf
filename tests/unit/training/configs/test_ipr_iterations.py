"""IPR's iterations in the pipelines: they train the current agent, beside the SFT policy."""

from pathlib import Path

import pytest

from qguide.pipelines.config import load_pipeline
from qguide.training.configs.job_files import load_config
from qguide.training.jobs.ipr import IprConfig
from qguide.training.policy_training.options import TrainDpoConfig
from tests.support.serving import ROOT

CONFIGS = ROOT / "training" / "configs"
PIPELINES = {
    path.relative_to(CONFIGS).as_posix(): path
    for path in sorted(CONFIGS.rglob("pipeline*.toml"))
    if any(stage.job == "ipr" for stage in load_pipeline(path).stages.values())
}


def trainings(path: Path) -> list[tuple[str, TrainDpoConfig, IprConfig]]:
    """Each training on pairs that a stage of the pipeline explores, with that stage."""
    stages = load_pipeline(path).stages
    explored = {
        config.output: config
        for stage in stages.values()
        if stage.job == "ipr"
        for config in [load_config(IprConfig, stage.config, stage.set)]
    }
    return [
        (name, config, explored[config.pairs[0]])
        for name, stage in stages.items()
        if stage.job == "train-dpo"
        for config in [load_config(TrainDpoConfig, stage.config, stage.set)]
        if config.pairs[0] in explored
    ]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_agent_that_explored_is_trained_further_beside_the_sft_policy(pipeline: str) -> None:
    found = trainings(PIPELINES[pipeline])
    assert len(found) >= 1
    for name, training, exploration in found:
        sft = exploration.scorer or exploration.policy
        assert str(training.policy) == exploration.policy, name
        assert str(training.reference or training.policy) == sft, name
