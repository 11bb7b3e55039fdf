"""The DPO trainer: it learns to rank, it can be killed, and what it writes can be served."""

import json
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch

import qguide.training.optimization.trainer as trainer
from qguide.qnet.errors import ConfigError
from qguide.qnet.features.domain import Domain
from qguide.qnet.models.checkpoint import LoadedImplicitQ, load_policy, load_q_model
from qguide.qnet.models.manifest import MergedLora
from qguide.qnet.scoring.implicit_q import NaiveImplicitScorer, SharedPrefixImplicitScorer
from qguide.qnet.types import Message, ScoreRequest
from qguide.training.data.preferences import PreferenceRow
from qguide.training.data.runs import JsonlWriter, RunFolder, open_run, read_rows
from qguide.training.jobs.pairs import PairsConfig, run_pairs
from qguide.training.jobs.train_dpo import run_train_dpo
from qguide.training.optimization.options import DpoOptimization, Lora
from qguide.training.policy_training.options import TrainDpoConfig
from tests.support.go_groups import groups_of
from tests.support.tiny_models import save_policy


def pairs_of(folder: Path, numbers: range) -> Path:
    groups = groups_of(folder / "groups", numbers)
    run_pairs(PairsConfig(groups=(groups,), output=folder / "pairs"))
    return folder / "pairs"


@pytest.fixture
def config(tmp_path: Path) -> TrainDpoConfig:
    return TrainDpoConfig(
        pairs=(pairs_of(tmp_path / "train", range(16)),),
        held_back_pairs=(pairs_of(tmp_path / "held_back", range(40, 52)),),
        other_pairs=(pairs_of(tmp_path / "others", range(30, 34)),),
        held_back_groups=(tmp_path / "held_back" / "groups",),
        policy=save_policy(tmp_path / "policy"),
        output=tmp_path / "dpo",
        validation_fraction=0.0,
        write_policy=True,
        optimization=DpoOptimization(lr=3e-3, epochs=6, batch_tokens=120, micro_batch_tokens=120),
    )


def loaded(folder: Path) -> LoadedImplicitQ:
    model = load_q_model(folder)
    assert isinstance(model, LoadedImplicitQ)
    return model


def test_pairs_teach_an_implicit_q_that_the_scorers_read(config: TrainDpoConfig) -> None:
    manifest = run_train_dpo(config)
    assert first_loss(config.output) == pytest.approx(log(2), abs=1e-6)  # that of a coin
    figures = manifest.metrics
    assert figures["preference_accuracy"] == figures["preference_accuracy_other"] == 1.0
    assert figures["spearman"] == pytest.approx(1.0)
    assert figures["regret_steps"] == figures["invalid_rate"] == 0.0
    assert manifest.prior is not None
    assert manifest.prior.tasks >= 10
    assert manifest.licence is not None
    assert manifest.licence.granted
    domain = Domain.load(config.output / "checkpoint")
    assert domain is not None
    assert domain.distance((Message("user", "Plan a weekend in Lisbon."),)).outside
    row = next(iter(read_rows(RunFolder(config.held_back_pairs[0]).rows, PreferenceRow)))
    assert not domain.distance(row.history).outside
    q_model = loaded(config.output / "checkpoint")
    assert q_model.manifest == manifest
    saved = load_policy(config.output / "policy")
    assert saved.manifest is not None
    assert saved.manifest.prior is None
    assert saved.manifest.licence is None
    policy = saved.model
    assert torch.equal(policy.lm_head.weight, q_model.model.policy.lm_head.weight)
    margins = []
    for row in read_rows(RunFolder(config.held_back_pairs[0]).rows, PreferenceRow):
        replies = tuple(side[0].to_message() for side in (row.chosen, row.rejected))
        for scorer in (NaiveImplicitScorer(q_model), SharedPrefixImplicitScorer(q_model)):
            [scored] = scorer.score([ScoreRequest(row.history, replies)])
            margins.append(scored.q_values[0] - scored.q_values[1])
    mean = sum(margins) / len(margins)
    assert mean == pytest.approx(figures["preference_margin"], abs=1e-4)


@pytest.mark.parametrize("architecture", ["llama", pytest.param("lfm2", marks=pytest.mark.slow)])
def test_adapters_learn_the_pairs_and_are_merged(config: TrainDpoConfig, tmp_path: Path, architecture: str) -> None:
    options = config.optimization.model_copy(update={"lora": Lora(rank=8), "lr": 1e-2})
    policy = save_policy(tmp_path / architecture, architecture)
    update = {"optimization": options, "policy": policy}
    manifest = run_train_dpo(config.model_copy(update=update))
    assert first_loss(config.output) == pytest.approx(log(2), abs=1e-6)
    assert manifest.metrics["preference_accuracy"] == 1.0
    assert manifest.lora == MergedLora(rank=8, alpha=32)
    q_model = loaded(config.output / "checkpoint")
    assert q_model.manifest == manifest
    start, end = q_model.model.reference.state_dict(), q_model.model.policy.state_dict()
    changed = {name for name in start if not torch.equal(start[name], end[name])}
    assert changed == {name for name in start if "_proj" in name or "feed_forward" in name}


def test_policy_and_reference_are_rounded_alike_beside_adapters(config: TrainDpoConfig) -> None:
    options = {"lora": Lora(rank=8), "epochs": 1, "frozen_dtype": "bfloat16"}
    optimization = config.optimization.model_copy(update=options)
    run_train_dpo(config.model_copy(update={"optimization": optimization}))
    model = loaded(config.output / "checkpoint").model
    embedded = (part.get_input_embeddings().weight for part in (model.policy, model.reference))
    assert torch.equal(*embedded)
    weight = model.reference.get_input_embeddings().weight
    assert torch.equal(weight, weight.bfloat16().float())


def test_the_first_loss_is_that_of_a_coin_in_mixed_precision(config: TrainDpoConfig) -> None:
    bf16 = config.optimization.model_copy(update={"mixed_precision": "bf16", "epochs": 1})
    run_train_dpo(config.model_copy(update={"optimization": bf16}))
    assert first_loss(config.output) == pytest.approx(log(2), abs=1e-6)


@pytest.mark.parametrize(("architecture", "dropout"), [("gpt2", {}), ("llama", {"attention_dropout": 0.5})])
def test_a_policy_with_dropout_starts_as_its_reference(
    config: TrainDpoConfig, tmp_path: Path, architecture: str, dropout: dict[str, float]
) -> None:
    policy = save_policy(tmp_path / architecture, architecture)
    fields = json.loads((policy / "config.json").read_text()) | dropout
    (policy / "config.json").write_text(json.dumps(fields))
    run_train_dpo(passing(config, 1).model_copy(update={"policy": policy}))
    assert first_loss(config.output) == pytest.approx(log(2), abs=1e-6)
    written = load_policy(config.output / "policy").model.config
    assert {name: getattr(written, name) for name in dropout} == dropout


def passing(config: TrainDpoConfig, epochs: int) -> TrainDpoConfig:
    """The same training in fewer passes."""
    return config.model_copy(update={"optimization": config.optimization.model_copy(update={"epochs": epochs})})


def first_loss(output: Path) -> float:
    line = RunFolder(output).metrics.read_text().splitlines()[0]
    return float(json.loads(line)["loss"])


def test_another_reference_than_the_start_is_kept(config: TrainDpoConfig, tmp_path: Path) -> None:
    reference = save_policy(tmp_path / "reference", seed=1)
    run_train_dpo(passing(config, 1).model_copy(update={"reference": reference}))
    assert first_loss(config.output) != pytest.approx(log(2), abs=1e-3)
    kept = loaded(config.output / "checkpoint").model.reference.state_dict()
    assert all(torch.equal(kept[name], weight) for name, weight in load_policy(reference).model.state_dict().items())


def test_a_killed_run_goes_on_to_the_same_weights(
    config: TrainDpoConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = passing(config, 2)
    whole = run_train_dpo(config.model_copy(update={"output": tmp_path / "whole"}))
    always = config.optimization.model_copy(update={"save_every_s": 1e-9})
    killed = config.model_copy(update={"optimization": always})
    save = trainer.Loop._save

    def save_and_die(loop: Any) -> None:
        save(loop)
        if loop.step == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer.Loop, "_save", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        run_train_dpo(killed)
    monkeypatch.undo()
    assert run_train_dpo(killed).files["model.safetensors"] == whole.files["model.safetensors"]


def test_a_finished_run_is_written_again_as_it_was(config: TrainDpoConfig) -> None:
    config = passing(config, 1)
    assert run_train_dpo(config) == run_train_dpo(config)


def test_two_jobs_do_not_share_a_folder(config: TrainDpoConfig) -> None:
    with open_run(config.output, config), pytest.raises(ConfigError, match=r"job .*dpo; .*output"):
        run_train_dpo(config)


@pytest.mark.parametrize("name", ["held_back_pairs", "other_pairs", "held_back_groups"])
def test_a_task_that_is_trained_on_is_not_validated_on(config: TrainDpoConfig, tmp_path: Path, name: str) -> None:
    trained = {"held_back_groups": tmp_path / "train" / "groups"}.get(name, config.pairs[0])
    with pytest.raises(ConfigError, match=f"task t0 of {name} .*also"):
        run_train_dpo(config.model_copy(update={name: (trained,)}))


def test_pairs_that_are_all_too_long_are_refused(config: TrainDpoConfig) -> None:
    changes = {"max_length": 32, "pairs": (_long_pairs(config),)}
    with pytest.raises(ConfigError, match="raise max_length"):
        run_train_dpo(config.model_copy(update=changes))


def _long_pairs(config: TrainDpoConfig) -> Path:
    folder = config.output.parent / "long"
    [row, *_] = read_rows(RunFolder(config.pairs[0]).rows, PreferenceRow)
    long = row.messages[0].model_copy(update={"content": "take mug from desk " * 20})
    with JsonlWriter(RunFolder(folder).rows) as rows:
        rows.write(row.model_copy(update={"messages": (long,)}))
    return folder
