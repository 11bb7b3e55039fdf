"""The SimPO trainer: chosen actions become likelier by token, without a reference."""

import json
from math import exp, log1p
from pathlib import Path

import pytest
import torch

from qguide.qnet.models.checkpoint import load_policy
from qguide.training.optimization.options import DpoOptimization
from qguide.training.policy_training.examples import read_pair_examples
from qguide.training.policy_training.logprobs import prepare_for_packing, reply_logprobs
from qguide.training.policy_training.options import PairExamples, TrainSimpoConfig
from qguide.training.policy_training.simpo import run_train_simpo
from tests.support.tiny_models import save_policy
from tests.unit.training.jobs.test_train_dpo import pairs_of


@pytest.fixture
def config(tmp_path: Path) -> TrainSimpoConfig:
    return TrainSimpoConfig(
        pairs=(pairs_of(tmp_path / "train", range(16)),),
        held_back_pairs=(pairs_of(tmp_path / "held_back", range(40, 52)),),
        held_back_groups=(tmp_path / "held_back" / "groups",),
        policy=save_policy(tmp_path / "policy"),
        output=tmp_path / "simpo",
        validation_fraction=0.0,
        optimization=DpoOptimization(lr=3e-3, epochs=6, batch_tokens=120, micro_batch_tokens=120),
    )


@torch.no_grad()
def margins_of(folder: Path, pairs: Path) -> list[float]:
    """Twice the difference of the mean log-likelihoods of a token, of each pair."""
    loaded = load_policy(folder)
    examples = PairExamples(pairs=(pairs,), validation_fraction=0.0)
    rows = read_pair_examples(examples, loaded.renderer, max_tokens=120, seed=0).training
    prepare_for_packing(loaded.model, loaded.model.device)
    loaded.model.eval()
    found = []
    for row in rows:
        sums = reply_logprobs(loaded.model, row).tolist()
        means = [total / len(reply) for total, reply in zip(sums, row.replies, strict=True)]
        found += [2 * (means[pair.chosen] - means[pair.rejected]) for pair in row.pairs]
    return found


def test_pairs_make_their_chosen_actions_likelier_by_token(config: TrainSimpoConfig) -> None:
    [held_back] = config.held_back_pairs
    before = margins_of(config.policy, held_back)
    manifest = run_train_simpo(config)
    after = margins_of(config.output / "checkpoint", held_back)
    assert min(after) > 0 > min(before)
    assert manifest.kind == "policy"
    assert manifest.metrics["preference_accuracy"] == 1.0
    assert manifest.metrics["preference_margin"] == pytest.approx(sum(after) / len(after), abs=1e-4)
    assert manifest.metrics["regret_steps"] == 0.0
    saved = load_policy(config.output / "checkpoint")
    assert saved.manifest == manifest


def test_the_first_loss_is_that_of_the_rewards_less_the_margin(config: TrainSimpoConfig) -> None:
    one_step = {"epochs": 1, "batch_tokens": 10**6, "micro_batch_tokens": 120}
    optimization = config.optimization.model_copy(update=one_step)
    run_train_simpo(config.model_copy(update={"optimization": optimization}))
    lines = (config.output / "metrics.jsonl").read_text().splitlines()
    first = next(line for line in map(json.loads, lines) if "loss" in line)
    losses = [log1p(exp(1.0 - margin)) for margin in margins_of(config.policy, *config.pairs)]
    assert first["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)
