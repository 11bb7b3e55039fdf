"""ETO on the fake environment: the expert's episodes against the policy's failures, then DPO."""

from pathlib import Path

import pytest

from qguide.qnet.models.checkpoint import load_policy
from qguide.training.architecture import Architecture
from qguide.training.data.preferences import PreferenceRow
from qguide.training.data.runs import RunFolder, read_rows
from qguide.training.data.trajectories import read_trajectories
from qguide.training.environments.corridor import CorridorConfig
from qguide.training.jobs.collect import CollectConfig, run_collect
from qguide.training.jobs.pairs import PairsConfig, run_pairs
from qguide.training.jobs.sft import run_sft
from qguide.training.jobs.train_dpo import run_train_dpo
from qguide.training.optimization.options import DpoOptimization, Optimization
from qguide.training.policy_training.options import SftConfig, TrainDpoConfig
from tests.support.corridors import write_solutions
from tests.unit.training.jobs.test_evaluate import QUIET, Wanderer

TASKS = 6


@pytest.fixture
def episodes(tmp_path: Path) -> tuple[Path, Path]:
    """Run folders of the expert and of the policy, which keeps what it loses."""
    write_solutions(tmp_path, count=TASKS)
    config = CollectConfig(
        output=tmp_path / "own",
        environment=CorridorConfig(count=TASKS),
        player="policy",
        policy="wanderer",
        only_won=False,
        max_steps=4,
    )
    run_collect(config, policy=Wanderer(), console=QUIET)
    return tmp_path / "expert", tmp_path / "own"


def rewards_in(folder: Path) -> dict[str, float]:
    rows = read_trajectories(RunFolder(folder).rows)
    return {row.task_id: row.reward for row in rows}


def test_a_round_makes_the_experts_episodes_likelier_than_the_policys_failures(
    tmp_path: Path, episodes: tuple[Path, Path]
) -> None:
    own = episodes[1]
    run_pairs(PairsConfig(trajectories=episodes, output=tmp_path / "pairs", against_expert=True))
    pairs = list(read_rows(RunFolder(tmp_path / "pairs").rows, PreferenceRow))
    lost = {task for task, reward in rewards_in(own).items() if reward == 0}
    assert {row.task_id for row in pairs} == lost
    assert {(row.level, row.source, row.gap) for row in pairs} == {("trajectory", "outcome", 1.0)}
    assert all("On." in row.chosen[0].content for row in pairs)  # the expert's thought
    assert all("Hm." in row.rejected[0].content for row in pairs)

    shape = Architecture(vocab_size=400, hidden_size=32, intermediate_size=64, layers=2, heads=2, context=1024)
    once = Optimization(lr=3e-3, epochs=1, batch_tokens=1024, micro_batch_tokens=1024)
    run_sft(SftConfig(trajectories=episodes, output=tmp_path / "sft", architecture=shape, optimization=once))
    dpo = TrainDpoConfig(
        pairs=(tmp_path / "pairs",),
        held_back_pairs=(),
        policy=tmp_path / "sft" / "checkpoint",
        output=tmp_path / "eto",
        validation_fraction=0.2,
        write_policy=True,
        optimization=DpoOptimization.model_validate(once.model_dump() | {"epochs": 6}),
    )
    assert run_train_dpo(dpo).metrics["preference_accuracy"] == 1.0
    load_policy(tmp_path / "eto" / "policy")  # which plays the next round
