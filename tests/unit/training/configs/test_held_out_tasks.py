"""Job files of an environment never evaluate on what they train on."""

import pytest

from qguide.pipelines.config import load_pipeline
from qguide.training.configs.job_files import load_config
from qguide.training.environment import EnvironmentConfig
from qguide.training.environments.registry import build_selected_suite
from qguide.training.environments.sciworld.bundle import SciWorldConfig, split_tasks
from qguide.training.jobs.collect import CollectConfig
from qguide.training.jobs.evaluate import EvaluateConfig
from qguide.training.jobs.explore import ExploreConfig
from qguide.training.jobs.groups import GroupsConfig
from qguide.training.jobs.ipr import IprConfig
from qguide.training.jobs.rro import RroConfig
from tests.support.serving import ROOT

CONFIGS = ROOT / "training" / "configs"
KINDS: dict[str, type[CollectConfig | GroupsConfig | EvaluateConfig]] = {
    "collect": CollectConfig,
    "groups": GroupsConfig,
    "evaluate": EvaluateConfig,
}
EXPLORING: dict[str, type[CollectConfig | ExploreConfig | GroupsConfig | IprConfig | RroConfig]] = {
    "collect": CollectConfig,
    "explore": ExploreConfig,
    "groups": GroupsConfig,
    "ipr": IprConfig,
    "rro": RroConfig,
}


def environment_of(folder: str, job: str) -> EnvironmentConfig:
    config = load_config(KINDS[job], CONFIGS / folder / f"{job}.toml")
    environment: EnvironmentConfig = config.environment
    return environment


def start_pages(environment: EnvironmentConfig) -> set[str]:
    suite = build_selected_suite(environment)
    pages = set()
    for task in suite.tasks:
        episode = suite.make(task)
        pages.add(episode.reset())
        episode.close()
    return pages


@pytest.mark.parametrize("folder", ["hotpotqa", "webshop"])
def test_no_two_jobs_start_from_the_same_page(folder: str) -> None:
    pages: dict[str, set[str]] = {job: set() for job in KINDS}
    for stage in load_pipeline(CONFIGS / folder / "pipeline.toml").stages.values():
        if stage.job in KINDS:
            config = load_config(KINDS[stage.job], stage.config, stage.set)
            pages[stage.job] |= start_pages(config.environment)
    assert len(pages["collect"]) > 1000
    assert len(pages["evaluate"]) > 100
    assert pages["collect"].isdisjoint(pages["evaluate"])
    assert pages["groups"].isdisjoint(pages["evaluate"])
    assert pages["collect"].isdisjoint(pages["groups"])


@pytest.mark.parametrize(
    "pipeline",
    [
        "hotpotqa/methods/pipeline",
        "webshop/methods/pipeline",
        "webshop/methods/pipeline_variations",
        "webshop/methods/pipeline_baselines",
    ],
)
def test_no_method_explores_what_is_played(pipeline: str) -> None:
    stages = load_pipeline(CONFIGS / f"{pipeline}.toml").stages.values()
    explored: set[str] = set()
    played: set[str] = set()
    for stage in stages:
        if stage.job in EXPLORING:
            exploring = load_config(EXPLORING[stage.job], stage.config, stage.set)
            explored |= start_pages(exploring.environment)
        elif stage.job == "evaluate":
            config = load_config(EvaluateConfig, stage.config, stage.set)
            played |= start_pages(config.environment)
    assert len(explored) > 100
    assert len(played) > 100
    assert explored.isdisjoint(played)


@pytest.mark.parametrize("folder", ["sciworld", "sciworld/short"])
def test_scienceworld_is_evaluated_on_another_list(folder: str) -> None:
    tasks = {}
    for job in KINDS:
        environment = environment_of(folder, job)
        assert isinstance(environment, SciWorldConfig)
        tasks[job] = {task.id for task in split_tasks(environment.split)}
    assert (tasks["collect"] | tasks["groups"]).isdisjoint(tasks["evaluate"])
