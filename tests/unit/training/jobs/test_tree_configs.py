"""The job files that ship can be read, and have the papers' values."""

from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import BaseModel

from qguide.training.configs.job_files import load_config
from qguide.training.data.decision_groups import GroupDecision
from qguide.training.environments.alfworld.bundle import AlfWorldConfig
from qguide.training.exploration.contrast import Contrast
from qguide.training.exploration.mcts import Mcts
from qguide.training.exploration.rising import Rising
from qguide.training.exploration.step_rewards import StepRewards
from qguide.training.exploration.tree_expansion import Exploration
from qguide.training.jobs.choice_regret import ChoiceRegretConfig
from qguide.training.jobs.collect import CollectConfig
from qguide.training.jobs.evaluate import EvaluateConfig
from qguide.training.jobs.explore import ExploreConfig
from qguide.training.jobs.groups import GroupsConfig
from qguide.training.jobs.ipr import IprConfig
from qguide.training.jobs.label import LabelConfig
from qguide.training.jobs.pairs import PairsConfig
from qguide.training.jobs.paraphrase import ParaphraseConfig
from qguide.training.jobs.rro import RroConfig
from qguide.training.policy_training.options import SftConfig, TrainDpoConfig, TrainPolicyConfig
from qguide.training.q_training.options import TrainQNetConfig
from tests.support.decision_groups import candidate

CONFIGS = Path(__file__).parents[4] / "training" / "configs" / "alfworld"
KINDS: dict[str, type[BaseModel]] = {
    "collect": CollectConfig,
    "sft": SftConfig,
    "explore": ExploreConfig,
    "groups": GroupsConfig,
    "choice_regret": ChoiceRegretConfig,
    "label": LabelConfig,
    "train_qnet": TrainQNetConfig,
    "train_value": TrainQNetConfig,
    "ablation": TrainQNetConfig,
    "pairs": PairsConfig,
    "rro": RroConfig,
    "ipr": IprConfig,
    "train_dpo": TrainDpoConfig,
    "train_policy": TrainPolicyConfig,
    "paraphrase": ParaphraseConfig,
    "evaluate": EvaluateConfig,
}
JOB_FILES = sorted(p for p in CONFIGS.rglob("*.toml") if not p.stem.startswith("pipeline"))
"""A pipeline's file is no job's; the tests of pipelines plan it."""


@pytest.mark.parametrize("path", JOB_FILES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_job_file_makes_a_configuration(path: Path) -> None:
    [kind] = [kind for job, kind in KINDS.items() if path.stem.startswith(job)]
    load_config(kind, path)


def test_explore_ships_with_the_papers_numbers_for_alfworld() -> None:
    config = load_config(ExploreConfig, CONFIGS / "explore.toml")
    assert config.exploration == Exploration(max_steps=18)
    assert (config.exploration.depth, config.exploration.temperature) == (8, 0.7)


def test_label_ships_with_the_papers_discount() -> None:
    config = load_config(LabelConfig, CONFIGS / "label.toml")
    assert (config.target, config.gamma, config.normalize) == ("q", 0.9, True)


def test_label_reads_what_explore_writes() -> None:
    trees = load_config(ExploreConfig, CONFIGS / "explore.toml").output
    assert load_config(LabelConfig, CONFIGS / "label.toml").trees == (trees,)


def test_training_ships_with_the_papers_numbers() -> None:
    sft = load_config(SftConfig, CONFIGS / "sft.toml")
    qnet = load_config(TrainQNetConfig, CONFIGS / "train_qnet.toml")
    for config in (sft, qnet):
        optimization = config.optimization
        assert (optimization.lr, optimization.warmup_ratio) == (1e-5, 0.03)
        assert (optimization.weight_decay, config.max_length) == (0.0, 4096)
    assert (sft.optimization.epochs, qnet.optimization.epochs) == (3, 2)
    assert sft.observation_weight == 0
    assert (qnet.head_width, qnet.loss_on, qnet.ranking_weight) == (1024, "all", 0)
    assert qnet.constant_trees
    assert qnet.unbranched_suffixes


def test_self_training_ships_with_the_papers_numbers() -> None:
    guided = load_config(CollectConfig, CONFIGS / "baselines" / "collect_guided.toml")
    assert (guided.candidates, guided.attempts, guided.temperature) == (3, 1, 0.7)
    assert not guided.only_won
    cloning = load_config(SftConfig, CONFIGS / "sft.toml")
    changed = {"trajectories", "output", "name"}
    for name, collected, option in (
        ("self_training", "collect_guided", {}),
        ("rft", "collect_samples", {"distinct": True}),
        ("agent_evol", "collect_all_samples", {"reward_weighted": True}),
    ):
        config = load_config(SftConfig, CONFIGS / "baselines" / f"sft_{name}.toml")
        own = load_config(CollectConfig, CONFIGS / "baselines" / f"{collected}.toml").output
        assert config.trajectories == (*cloning.trajectories, own)
        expected = cloning.model_dump(exclude=changed) | option
        assert config.model_dump(exclude=changed) == expected


def test_eto_ships_with_the_numbers_of_its_published_script() -> None:
    baselines = CONFIGS / "baselines"
    collect = load_config(CollectConfig, baselines / "collect_eto.toml")
    assert (collect.temperature, collect.attempts, collect.only_won) == (0.7, 1, False)
    pairs = load_config(PairsConfig, baselines / "pairs_eto.toml")
    expert = load_config(CollectConfig, CONFIGS / "collect.toml").output
    assert (pairs.trajectories, pairs.against_expert) == ((expert, collect.output), True)
    dpo = load_config(TrainDpoConfig, baselines / "train_dpo_eto.toml")
    assert dpo.pairs == (pairs.output,)
    assert (dpo.policy, dpo.reference, dpo.beta) == (Path(collect.policy), None, 0.1)
    optimization = dpo.optimization
    assert (optimization.lr, optimization.epochs, optimization.warmup_ratio) == (1e-6, 3, 0.1)


def test_preference_training_ships_with_the_papers_numbers() -> None:
    config = load_config(TrainDpoConfig, CONFIGS / "train_dpo.toml")
    optimization = config.optimization
    assert (config.beta, config.max_length) == (0.1, 4096)
    assert (optimization.lr, optimization.warmup_ratio, optimization.epochs) == (1e-5, 0.1, 1)
    pairs = load_config(PairsConfig, CONFIGS / "pairs.toml")
    assert config.pairs == (pairs.output,)
    search = load_config(ExploreConfig, CONFIGS / "explore_mcts.toml")
    assert (pairs.trees, pairs.target) == ((search.output,), "mcts")
    assert (search.strategy, search.mcts) == ("mcts", Mcts())
    assert config.policy == load_config(SftConfig, CONFIGS / "sft.toml").output / "checkpoint"


def test_reward_rising_ships_with_the_papers_rule() -> None:
    config = load_config(RroConfig, CONFIGS / "rro.toml")
    assert (config.rising, config.rewards) == (Rising(), StepRewards())
    assert (config.rising.stop, config.rising.go_on) == ("rising", "first")
    assert Path(config.policy) == load_config(SftConfig, CONFIGS / "sft.toml").output / "checkpoint"


def test_process_refinement_ships_with_the_papers_numbers() -> None:
    ipr = load_config(IprConfig, CONFIGS / "ipr.toml")
    assert (ipr.contrast, ipr.rewards) == (Contrast(tau=0.5, temperature=0.0), StepRewards())
    assert (ipr.rewards.rollouts, ipr.rewards.temperature) == (5, 1.0)
    assert ipr.expert == (load_config(CollectConfig, CONFIGS / "collect.toml").output,)
    dpo = load_config(TrainDpoConfig, CONFIGS / "train_dpo_ipr.toml")
    assert (dpo.mixture, dpo.beta) == ("levels", 0.1)
    assert (dpo.weights.suffix, dpo.weights.trajectory, dpo.weights.sft) == (1, 1, 1)
    optimization = dpo.optimization
    assert (optimization.lr, optimization.warmup_ratio, optimization.epochs) == (1e-5, 0.03, 3)
    assert dpo.pairs == (ipr.output,)
    assert dpo.write_policy
    assert str(dpo.policy) == ipr.policy == ipr.scorer


def test_a_step_reward_model_learns_the_mean_outcome_of_the_scorers_roll_outs() -> None:
    groups = load_config(GroupsConfig, CONFIGS / "groups_step_rewards.toml")
    rewards = load_config(IprConfig, CONFIGS / "ipr.toml").rewards
    continuation = groups.continuation
    assert (continuation.by, continuation.temperature) == ("policy", rewards.temperature)
    assert continuation.repetitions == rewards.rollouts
    model = load_config(TrainQNetConfig, CONFIGS / "train_qnet_step_rewards.toml")
    assert model.groups == (groups.output,)
    look = candidate("look", *((reward, 9) for reward in (1, 0, 0, 1, 0)))
    [label] = GroupDecision((look,), chosen=0, after_noop=True).labels(model.group_labels)
    assert label.value == pytest.approx(0.4)


def test_each_stage_reads_what_the_one_before_it_writes() -> None:
    collect = load_config(CollectConfig, CONFIGS / "collect.toml")
    sft = load_config(SftConfig, CONFIGS / "sft.toml")
    explore = load_config(ExploreConfig, CONFIGS / "explore.toml")
    label = load_config(LabelConfig, CONFIGS / "label.toml")
    qnet = load_config(TrainQNetConfig, CONFIGS / "train_qnet.toml")
    assert sft.trajectories == (collect.output,)
    assert Path(explore.policy) == sft.output / "checkpoint" == qnet.trunk
    assert qnet.labels == (label.output,)


def test_a_command_in_the_head_of_a_job_file_names_that_file() -> None:
    for path in CONFIGS.rglob("*.toml"):
        commands = [line for line in path.read_text().splitlines() if "--config" in line]
        shown = str(path.relative_to(CONFIGS.parents[2]))
        assert all(shown in command for command in commands), shown


def test_no_two_jobs_of_the_embedded_models_play_the_same_generated_game() -> None:
    def files(job: str) -> list[Path]:
        return sorted((CONFIGS / "embedded").glob(f"{job}*.toml"))

    environments = [
        *(load_config(CollectConfig, path).environment for path in files("collect")),
        *(load_config(ExploreConfig, path).environment for path in files("explore")),
        *(load_config(GroupsConfig, path).environment for path in files("groups")),
    ]
    games = [table for table in environments if isinstance(table, AlfWorldConfig)]
    ranges = sorted((e.first_seed, e.first_seed + e.count) for e in games if not e.games)
    assert len(ranges) > 5
    assert all(before[1] <= after[0] for before, after in pairwise(ranges))
