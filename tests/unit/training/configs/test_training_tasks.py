"""No job file and no pipeline trains on a task that is held back, validated or evaluated on.

What a trainer reads is followed to the jobs that played it, and theirs to the tasks that they name.
"""

from functools import lru_cache
from itertools import combinations
from pathlib import Path
from random import Random

import pytest
from pydantic import BaseModel

from benchmarks.recorded.jobs import RECORDED
from benchmarks.recorded.rerank import RerankConfig
from qguide.jobs.table import JOBS as INSTALLED
from qguide.jobs.table import find_job
from qguide.pipelines.config import load_pipeline
from qguide.pipelines.plan import output_of, reads_of
from qguide.training.configs.job_files import load_config
from qguide.training.environment import EnvironmentConfig
from qguide.training.environments.alfworld.bundle import AlfWorldConfig
from qguide.training.environments.intercode_sql.bundle import SqlConfig
from qguide.training.environments.registry import build_selected_suite
from qguide.training.environments.sciworld.bundle import SciWorldConfig, split_tasks
from qguide.training.jobs.collect import CollectConfig
from qguide.training.jobs.evaluate import EvaluateConfig
from qguide.training.jobs.groups import GroupsConfig
from qguide.training.jobs.label import LabelConfig
from qguide.training.policy_training.options import SftConfig, TrainDpoConfig, TrainPolicyConfig
from qguide.training.q_training.options import TrainQNetConfig
from tests.support.serving import ROOT

CONFIGS = (ROOT / "training/configs", ROOT / "benchmarks/recorded/configs")
TRAIN_GAMES = Path("data/alfworld/train")
NUMBER_OF_TRAIN_GAMES = 3_554
OWN = "own/"
"""Files that name a package and a model which their reader puts in, and what these make."""
HELD_BACK = ("held_back_groups", "held_back_pairs", "other_pairs")
JOBS = {job.name.replace("-", "_"): job for job in (*INSTALLED.values(), *RECORDED)} | {
    "train_value": INSTALLED["train-qnet"],
    "ablation": INSTALLED["train-qnet"],
}
TRAINERS = (SftConfig, TrainQNetConfig, TrainDpoConfig, TrainPolicyConfig)


@lru_cache
def configs() -> tuple[tuple[str, BaseModel], ...]:
    """(name, configuration) of every job file and every stage of a pipeline."""
    found: list[tuple[str, BaseModel]] = []
    files = {path: str(path.relative_to(top)) for top in CONFIGS for path in top.rglob("*.toml")}
    for path, name in files.items():
        if name.startswith(OWN):
            continue
        if path.stem.startswith("pipeline"):
            for stage, job in load_pipeline(path).stages.items():
                config = load_config(find_job(job.job).config_type(), job.config, job.set)
                found.append((f"{name}:{stage}", config))
        else:
            prefix = max((prefix for prefix in JOBS if path.stem.startswith(prefix)), key=len)
            found.append((name, load_config(JOBS[prefix].config_type(), path)))
    return tuple(found)


@lru_cache
def run_folders() -> tuple[tuple[Path, BaseModel], ...]:
    """(run folder, configuration) of all jobs but evaluations, which write nothing to read."""
    return tuple((output_of(config), config) for _, config in configs() if not isinstance(config, EvaluateConfig))


@lru_cache
def writers_of(path: Path) -> list[BaseModel]:
    """The jobs whose run folder a path is in."""
    return [config for folder, config in run_folders() if path.is_relative_to(folder)]


def environments_of(config: BaseModel, *, models: bool = True) -> frozenset[EnvironmentConfig]:
    """Environments whose tasks a job plays, or that are in what it learns from.

    Args:
        config: the job's.
        models: follow its models to what they were trained on.
    """
    learned = [
        environments_in(read.path, models=models)
        for read in reads_of(config)
        if read.field not in HELD_BACK and (models or read.model is None)
    ]
    return frozenset(played_by(config)).union(*learned)


@lru_cache
def environments_in(path: Path, *, models: bool) -> frozenset[EnvironmentConfig]:
    """The environments of all jobs whose run folder a path is in."""
    return frozenset().union(*(environments_of(writer, models=models) for writer in writers_of(path)))


def held_back_of(config: BaseModel) -> list[EnvironmentConfig]:
    """Environments whose tasks a trainer holds back, for validation alone."""
    reads = [read for read in reads_of(config) if read.field in HELD_BACK]
    writers = [writer for read in reads for writer in writers_of(read.path)]
    return [each for writer in writers for each in environments_of(writer, models=False)]


def played_by(config: BaseModel) -> list[EnvironmentConfig]:
    """The environment of a job that plays."""
    environment = getattr(config, "environment", None)
    return [environment] if isinstance(environment, EnvironmentConfig) else []


@lru_cache
def task_ids(environment: EnvironmentConfig) -> frozenset[str]:
    """Ids of the tasks, or the places of ALFWorld's games in their list, which is not here."""
    if isinstance(environment, SciWorldConfig):
        return frozenset(task.id for task in split_tasks(environment.split))
    if isinstance(environment, SqlConfig) and environment.tasks is not None:
        assert environment.task_ids is not None
        lines = (ROOT / environment.task_ids).read_text(encoding="utf-8").splitlines()
        return frozenset(line for line in lines if not line.startswith("#"))
    if not isinstance(environment, AlfWorldConfig):
        tasks = build_selected_suite(environment).tasks
        return frozenset(f"{environment.name} {task.id}" for task in tasks)
    if environment.games is None:
        first = environment.first_seed
        return frozenset(f"generated {first + number}" for number in range(environment.count))
    places = list(range(NUMBER_OF_TRAIN_GAMES))
    if environment.shuffle_seed is not None:
        Random(environment.shuffle_seed).shuffle(places)
    start, _, end = (environment.slice or ":").partition(":")
    chosen = places[int(start or 0) : int(end) if end else None]
    return frozenset(f"{environment.games} {place}" for place in chosen)


def trainers() -> list[tuple[str, BaseModel]]:
    return [(name, config) for name, config in configs() if isinstance(config, TRAINERS)]


@pytest.fixture(scope="module")
def evaluated() -> set[str]:
    """Ids of all tasks on which job files evaluate."""
    return {
        task_id
        for _, config in configs()
        if isinstance(config, EvaluateConfig)
        for task_id in task_ids(config.environment)
    }


def test_the_jobs_of_every_environment_are_followed_to_their_tasks() -> None:
    names = {e.name for _, config in trainers() for e in environments_of(config)}
    assert names >= {"alfworld", "hotpotqa", "intercode-sql", "sciworld", "webshop"}
    [qnet] = [config for name, config in configs() if name == "alfworld/low/train_qnet.toml"]
    # A pipeline writes the same folders with fewer games.
    assert {len(task_ids(e)) for e in environments_of(qnet)} >= {300, 1000}
    assert 100 in [len(task_ids(e)) for e in held_back_of(qnet)]


def test_games_and_splits_that_are_trained_on_are_those_for_training() -> None:
    for name, config in trainers():
        for environment in environments_of(config):
            if isinstance(environment, AlfWorldConfig):
                assert environment.games in (None, TRAIN_GAMES), name
            if isinstance(environment, SciWorldConfig):
                assert environment.split == "train", name


def test_nothing_is_trained_on_a_task_of_an_evaluation(evaluated: set[str]) -> None:
    assert len(evaluated) > 500
    for name, config in trainers():
        for environment in environments_of(config):
            assert task_ids(environment).isdisjoint(evaluated), name


def test_nothing_is_trained_on_a_task_that_it_holds_back() -> None:
    with_held_back = 0
    for name, config in trainers():
        held_back = [task_ids(e) for e in held_back_of(config)]
        with_held_back += bool(held_back)
        for environment in environments_of(config) if held_back else ():
            assert all(task_ids(environment).isdisjoint(ids) for ids in held_back), name
    assert with_held_back >= 2


@pytest.mark.parametrize("folder", ["hotpotqa/splits", "sciworld/splits", "intercode_sql/folds"])
def test_pinned_splits_have_no_task_in_common(folder: str) -> None:
    files = sorted((ROOT / "training/environments" / folder).glob("*.txt"))
    splits = {
        path.stem: path.read_text(encoding="utf-8").split("\n")[:-1]
        for path in files
        if path.stem != "smoke"  # some tasks of the others, for tests
    }
    assert len(splits) >= 3
    for one, other in combinations(splits, 2):
        assert splits[one]
        assert set(splits[one]).isdisjoint(splits[other]), (one, other)


def test_a_fold_of_intercode_sql_is_judged_by_models_of_the_others() -> None:
    loaded = dict(configs())
    for job, field in (("train_qnet", "groups"), ("sft", "trajectories")):
        config = loaded[f"intercode_sql/{job}.toml"]
        fold = output_of(config).name.partition("-")[0]
        read = {path.name for path in getattr(config, field)}
        assert read == {"1", "2", "3", "4"} - {fold}
    rerank = loaded["intercode_sql/rerank_recorded.toml"]
    assert isinstance(rerank, RerankConfig)
    for judged in rerank.folds:
        number = Path(judged.groups).name
        assert {Path(q).parent.name.partition("-")[0] for q in judged.qnets} == {number}
        assert Path(judged.policy).parent.name == number


def test_a_leak_would_be_found() -> None:
    training = CollectConfig(output=Path("a"), environment=AlfWorldConfig(count=10))
    held_back = GroupsConfig(output=Path("b"), environment=AlfWorldConfig(first_seed=9, count=1))
    [one], [other] = environments_of(training), environments_of(held_back)
    assert task_ids(one) & task_ids(other) == {"generated 9"}
    everything = LabelConfig(trees=(Path("runs/alfworld/trees"),), output=Path("c"))
    assert "generated 100000" in {i for e in environments_of(everything) for i in task_ids(e)}
