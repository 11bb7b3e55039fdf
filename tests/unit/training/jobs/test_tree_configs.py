"""The files that ship with the jobs say what the paper says."""

from pathlib import Path

from training.algorithms.exploration import Exploration
from training.config import load_config
from training.jobs.explore import ExploreConfig
from training.jobs.label import LabelConfig

CONFIGS = Path(__file__).parents[4] / "training" / "configs" / "alfworld"


def test_explore_ships_with_the_papers_numbers_for_alfworld() -> None:
    config = load_config(ExploreConfig, CONFIGS / "explore.toml")
    assert config.exploration == Exploration()
    assert (config.exploration.depth, config.exploration.temperature) == (8, 0.7)


def test_label_ships_with_the_papers_discount() -> None:
    config = load_config(LabelConfig, CONFIGS / "label.toml")
    assert (config.target, config.gamma, config.normalize) == ("q", 0.9, True)


def test_label_reads_what_explore_writes() -> None:
    trees = load_config(ExploreConfig, CONFIGS / "explore.toml").output
    assert load_config(LabelConfig, CONFIGS / "label.toml").trees == (trees,)
