"""The papers' numbers of each environment, read from its job files."""

import pytest

from tests.support.serving import ROOT
from training.configs.job_files import load_config
from training.jobs.explore import ExploreConfig
from training.jobs.ipr import IprConfig

CONFIGS = ROOT / "training" / "configs"


@pytest.mark.parametrize(
    ("environment", "depth", "steps"), [("webshop", 3, 5), ("sciworld", 6, 18)]
)
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
