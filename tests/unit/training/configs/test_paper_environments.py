"""The papers' numbers of each environment, read from its job files."""

from typing import Any

import pytest

from qguide.jobs.table import JOBS
from qguide.training.configs.job_files import load_config
from qguide.training.jobs.explore import ExploreConfig
from qguide.training.jobs.ipr import IprConfig
from qguide.training.jobs.label import LabelConfig
from qguide.training.jobs.pairs import PairsConfig
from qguide.training.jobs.rro import RroConfig
from qguide.training.policy_training.options import TrainDpoConfig
from tests.support.serving import ROOT

CONFIGS = ROOT / "training" / "configs"
BATCH_TOKENS = 1024
"""Tokens that stand for a pair of the paper's batches."""


def fields(environment: str, job: str, file: str = "") -> dict[str, Any]:
    """The validated fields of a job file; without `file` it is called after its job."""
    path = CONFIGS / environment / f"{file or job}.toml"
    config = load_config(JOBS[job].config_type(), path)
    return config.model_dump(mode="json")


@pytest.mark.parametrize(("environment", "depth", "steps"), [("webshop", 3, 5), ("sciworld", 6, 18)])
def test_qlass_explores_to_the_papers_depth(environment: str, depth: int, steps: int) -> None:
    exploration = load_config(ExploreConfig, CONFIGS / environment / "explore.toml").exploration
    found = (exploration.width, exploration.depth, exploration.max_steps)
    assert found == (2, depth, steps)


@pytest.mark.parametrize(("environment", "depth"), [("webshop", 10), ("hotpotqa", 7)])
def test_stepq_searches_to_the_papers_depth(environment: str, depth: int) -> None:
    mcts = load_config(ExploreConfig, CONFIGS / environment / "explore_mcts.toml").mcts
    assert (mcts.iterations, mcts.width, mcts.eta, mcts.max_steps) == (30, 5, 2.0, depth)


@pytest.mark.parametrize("environment", ["webshop", "intercode_sql"])
def test_ipr_keeps_a_pair_from_the_papers_gap_on(environment: str) -> None:
    config = load_config(IprConfig, CONFIGS / environment / "ipr.toml")
    assert (config.contrast.tau, config.rewards.rollouts) == (0.1, 5)


@pytest.mark.parametrize("environment", ["webshop", "sciworld"])
def test_qlass_labels_have_the_papers_discount(environment: str) -> None:
    config = load_config(LabelConfig, CONFIGS / environment / "label.toml")
    assert (config.target, config.gamma, config.normalize) == ("q", 0.9, True)


@pytest.mark.parametrize("environment", ["webshop", "hotpotqa"])
def test_stepq_pairs_are_steps_valued_by_the_search(environment: str) -> None:
    config = load_config(PairsConfig, CONFIGS / environment / "pairs.toml")
    assert (config.target, config.step_pairs, config.trajectory_pairs) == ("mcts", True, False)


@pytest.mark.parametrize("environment", ["webshop", "hotpotqa"])
def test_stepq_trains_with_the_papers_numbers(environment: str) -> None:
    config = load_config(TrainDpoConfig, CONFIGS / environment / "train_dpo.toml")
    found = config.optimization
    assert (config.beta, found.lr, found.warmup_ratio) == (0.1, 1e-5, 0.1)
    assert found.batch_tokens == 16 * BATCH_TOKENS


@pytest.mark.parametrize("environment", ["webshop", "intercode_sql"])
def test_ipr_trains_with_the_papers_numbers(environment: str) -> None:
    config = load_config(TrainDpoConfig, CONFIGS / environment / "train_dpo_ipr.toml")
    found = config.optimization
    assert 0.1 <= config.beta <= 0.5
    assert 1e-5 <= found.lr <= 5e-5
    assert (found.epochs, found.batch_tokens) == (3, 48 * BATCH_TOKENS)
    weights = config.weights
    assert config.mixture == "levels"
    assert weights.suffix == weights.trajectory == weights.sft == 1.0


@pytest.mark.parametrize("environment", ["webshop", "intercode_sql"])
def test_rro_stops_at_a_reward_that_has_not_fallen(environment: str) -> None:
    rising = load_config(RroConfig, CONFIGS / environment / "rro.toml").rising
    assert (rising.stop, rising.max_draws) == ("rising", 5)


@pytest.mark.parametrize(
    ("environment", "writer", "reader", "field"),
    [
        ("webshop", ("explore",), ("label",), "trees"),
        ("sciworld", ("explore",), ("label",), "trees"),
        ("webshop", ("explore", "explore_mcts"), ("pairs",), "trees"),
        ("hotpotqa", ("explore", "explore_mcts"), ("pairs",), "trees"),
        ("webshop", ("pairs",), ("train-dpo", "train_dpo"), "pairs"),
        ("hotpotqa", ("pairs",), ("train-dpo", "train_dpo"), "pairs"),
        ("webshop", ("ipr",), ("train-dpo", "train_dpo_ipr"), "pairs"),
        ("intercode_sql", ("ipr",), ("train-dpo", "train_dpo_ipr"), "pairs"),
        ("webshop", ("rro",), ("train-dpo", "train_dpo_rro"), "pairs"),
        ("intercode_sql", ("rro",), ("train-dpo", "train_dpo_rro"), "pairs"),
    ],
)
def test_a_job_reads_what_the_one_before_it_writes(
    environment: str, writer: tuple[str, ...], reader: tuple[str, ...], field: str
) -> None:
    assert fields(environment, *reader)[field] == [fields(environment, *writer)["output"]]


@pytest.mark.parametrize(
    ("environment", "file"),
    [
        ("webshop", "rro"),
        ("webshop", "train_dpo"),
        ("webshop", "train_dpo_ipr"),
        ("webshop", "train_dpo_rro"),
        ("hotpotqa", "train_dpo"),
        ("intercode_sql", "rro"),
        ("intercode_sql", "train_dpo_ipr"),
        ("intercode_sql", "train_dpo_rro"),
    ],
)
def test_every_method_starts_from_the_environments_policy(environment: str, file: str) -> None:
    job = "train-dpo" if file.startswith("train_dpo") else file
    sft = fields(environment, "sft")["output"]
    assert fields(environment, job, file)["policy"] == f"{sft}/checkpoint"
