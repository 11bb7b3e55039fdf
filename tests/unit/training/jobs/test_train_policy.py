"""The train-policy job: better candidates become likelier, a kill changes nothing, it is served."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import qguide.training.optimization.trainer as trainer
from qguide.qnet.errors import ConfigError
from qguide.qnet.models.checkpoint import load_policy
from qguide.training.jobs.train_policy import run_train_policy
from qguide.training.optimization.options import PolicyOptimization
from qguide.training.policy_training.examples import read_group_examples
from qguide.training.policy_training.logprobs import validate_choices
from qguide.training.policy_training.options import TrainPolicyConfig
from qguide.training.rollouts.models import weights_sha256
from tests.support.go_groups import groups_of
from tests.support.tiny_models import save_policy


@pytest.fixture
def config(tmp_path: Path) -> TrainPolicyConfig:
    return TrainPolicyConfig(
        groups=(groups_of(tmp_path / "groups", range(16)),),
        held_back_groups=(groups_of(tmp_path / "held_back", range(20, 24)),),
        policy=save_policy(tmp_path / "policy"),
        output=tmp_path / "grpo",
        validation_fraction=0.0,
        kl=0.0,
        optimization=PolicyOptimization(lr=3e-3, epochs=8, batch_tokens=120, micro_batch_tokens=120),
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_policy(folder).model.state_dict())


def test_better_candidates_become_likelier(config: TrainPolicyConfig) -> None:
    longer = config.optimization.model_copy(update={"lr": 1e-2, "epochs": 12})
    config = config.model_copy(update={"clip": 0.9, "optimization": longer})
    manifest = run_train_policy(config)
    assert (manifest.kind, manifest.metrics["decisions"]) == ("policy", 4)
    trained = load_policy(config.output / "checkpoint")
    assert trained.manifest == manifest
    before = load_policy(config.policy)
    _, held_back = read_group_examples(config, before.renderer, max_tokens=120, seed=0)
    expected = validate_choices(before.model, held_back)["expected_steps"]
    assert manifest.metrics["expected_steps"] < expected - 5
    assert manifest.metrics["expected_steps"] == pytest.approx(
        validate_choices(trained.model, held_back)["expected_steps"], rel=1e-4
    )


def test_a_policy_is_tied_to_the_reference_that_is_named(config: TrainPolicyConfig) -> None:
    optimization = config.optimization.model_copy(update={"epochs": 1})
    first = config.model_copy(update={"kl": 0.01, "optimization": optimization})
    run_train_policy(first)
    changes = {"policy": config.output / "checkpoint", "reference": config.policy}
    second = first.model_copy(update=changes | {"output": config.output / "second"})
    run_train_policy(second)
    old, reference = (
        torch.load(second.output / f"{name}_logprobs.pt", weights_only=True)["logprobs"]
        for name in ("old", "reference")
    )
    before = torch.load(config.output / "old_logprobs.pt", weights_only=True)["logprobs"]
    torch.testing.assert_close(reference, before)
    assert not torch.allclose(old[0], reference[0])


def test_a_killed_run_goes_on_to_the_same_weights(
    config: TrainPolicyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config.model_copy(update={"optimization": config.optimization.model_copy(update={"epochs": 2})})
    whole = run_train_policy(config.model_copy(update={"output": tmp_path / "whole"}))
    always = config.optimization.model_copy(update={"save_every_s": 1e-9})
    killed = config.model_copy(update={"optimization": always})
    save = trainer.Loop._save

    def save_and_die(loop: Any) -> None:
        save(loop)
        if loop.step == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer.Loop, "_save", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        run_train_policy(killed)
    monkeypatch.undo()
    assert run_train_policy(killed).files["model.safetensors"] == whole.files["model.safetensors"]


def test_groups_of_equal_values_alone_are_nothing_to_train_on(config: TrainPolicyConfig) -> None:
    [folder] = config.groups
    rows = folder / "rows.jsonl"
    text = rows.read_text().replace('"outcome_reward":1.0', '"outcome_reward":0.0')
    rows.write_text(text)
    with pytest.raises(ConfigError, match=r"groups .*values .* 4096 tokens; .*max_length"):
        run_train_policy(config)


def test_groups_of_another_policy_are_refused(config: TrainPolicyConfig) -> None:
    [folder] = config.groups
    drawn_by = {"policy": "another", "policy_sha256": "0" * 64}
    (folder / "config.json").write_text(json.dumps(drawn_by))
    with pytest.raises(ConfigError, match=r"groups .*another, .*weights"):
        run_train_policy(config)
    drawn_by["policy_sha256"] = weights_sha256(config.policy)
    (folder / "config.json").write_text(json.dumps(drawn_by))
    run_train_policy(config.model_copy(update={"optimization": PolicyOptimization(epochs=1)}))


def test_groups_that_are_trained_on_are_not_held_back(config: TrainPolicyConfig) -> None:
    with pytest.raises(ConfigError, match=r"task t0 of held_back_groups .*also"):
        run_train_policy(config.model_copy(update={"held_back_groups": config.groups}))
