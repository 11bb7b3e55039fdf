"""LoRA adapters: only they and the value head learn, and merged they compute the same."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from qguide.qnet.errors import ConfigError
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.qnet_config import QNetConfig
from qguide.training.optimization.adapters import merged, with_adapters
from qguide.training.optimization.objective import Loss
from qguide.training.optimization.options import Lora, Optimization
from qguide.training.optimization.trainer import Loop
from tests.support.architectures import tiny_config
from tests.support.tiny_models import policy_model, q_model
from tests.support.trainings import train, weights_of

TOKENS = torch.tensor([[1, 2, 3, 4, 5]])
STEPS = [[[1, 2, 3], [4, 5]], [[6, 7, 8]]] * 4
ROWS = ([1, 2, 3], [4, 5], [6, 7, 8])


def logits_or_q(model: Any) -> Tensor:
    """Outputs of a model for the tokens above."""
    with torch.no_grad():
        output = model(TOKENS)
    values: Tensor = output if isinstance(output, Tensor) else output.logits
    return values


def fill_adapters(model: nn.Module) -> None:
    """Give all adapters an effect, which new ones do not have."""
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator)


def q_loss(model: Any, *, interrupted_at: int | None = None) -> Callable[[list[int]], Loss]:
    """The squared error of the Q of a row's last token, whose target is the row's parity."""
    calls = itertools.count()

    def loss(tokens: list[int]) -> Loss:
        if next(calls) == interrupted_at:
            raise KeyboardInterrupt
        q = model(torch.tensor([tokens], device=model.device))[0, -1]
        return Loss((q - float(tokens[0] % 2)).square(), 1.0)

    return loss


@pytest.mark.parametrize("architecture", ["llama", "phi", "gpt2"])
@pytest.mark.parametrize("build", [q_model, policy_model])
def test_a_merged_model_computes_what_it_did_and_looks_as_before(
    build: Callable[[str], Any], architecture: str
) -> None:
    model = build(architecture).model.eval()
    shapes = {name: weight.shape for name, weight in model.state_dict().items()}
    modules = [type(module) for module in model.modules()]
    before = logits_or_q(model)
    with_adapters(model, Lora(rank=4, dropout=0.5))
    assert torch.equal(logits_or_q(model), before)
    fill_adapters(model)
    adapted = logits_or_q(model)
    effect = float((adapted - before).abs().max())
    assert effect > 0.01
    merged(model)
    # Rounding differs between processors, so it is compared with what the adapters add.
    assert float((logits_or_q(model) - adapted).abs().max()) < 1e-3 * effect
    assert {name: weight.shape for name, weight in model.state_dict().items()} == shapes
    assert [type(module) for module in model.modules()] == modules
    assert not hasattr(model.base_model, "peft_config")


def test_only_adapters_and_the_value_head_are_trained(tmp_path: Path) -> None:
    model = q_model().model
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    kept: list[Loop[Any]] = []
    train(tmp_path, model=model, loss_of=q_loss, steps=STEPS, inspect=kept.append, lr=0.01, lora={"rank": 2})
    for name, weight in model.state_dict().items():
        if "base_layer" in name:
            assert torch.equal(weight, start[name.replace("base_layer.", "")])
    [loop] = kept
    end = loop.write(lambda whole: whole.state_dict())
    changed = {name for name, weight in end.items() if not torch.equal(weight, start[name])}
    assert changed == {n for n in start if "_proj" in n or n.startswith("head.")}


@pytest.mark.parametrize("architecture", ["falcon_h1", "mamba2", "nemotron_h"])
def test_weights_that_a_kernel_reads_past_adapters_get_none(architecture: str) -> None:
    model = with_adapters(QNet(QNetConfig(trunk=tiny_config(architecture).to_dict(), head_width=16)), Lora(rank=2))
    adapted = {name for name, _ in model.named_parameters() if ".lora_A." in name}
    assert adapted
    assert not any("out_proj" in name for name in adapted)


def test_the_output_layer_of_a_language_model_is_frozen() -> None:
    model = with_adapters(policy_model("llama", tie_word_embeddings=False).model, Lora())
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert all(".lora_A." in name or ".lora_B." in name for name in trained)
    assert not any(name.startswith("lm_head") for name in trained)


def test_adapters_learn_a_few_rows_by_heart(tmp_path: Path) -> None:
    model = q_model().model
    steps = [[list(row) for row in ROWS]] * 60
    train(tmp_path, model=model, loss_of=q_loss, steps=steps, lr=0.01, lora={})
    loss = q_loss(model.eval())
    assert max(float(loss(row).total.detach()) for row in ROWS) < 1e-3


def test_a_killed_run_ends_where_an_unbroken_one_ends(tmp_path: Path) -> None:
    def end_of(folder: Path, interrupted_at: int | None = None) -> Tensor:
        torch.manual_seed(0)
        model = train(
            folder,
            model=q_model().model,
            loss_of=lambda model: q_loss(model, interrupted_at=interrupted_at),
            steps=STEPS,
            lora={"dropout": 0.3},
            lr=0.01,
            average_last=0.6,
            save_every_s=1e-9,
        )
        return weights_of(merged(model))

    whole = end_of(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        end_of(tmp_path / "broken", interrupted_at=9)
    assert torch.equal(end_of(tmp_path / "broken"), whole)


@pytest.mark.alone
def test_two_processes_with_checkpointing_end_where_one_ends(tmp_path: Path) -> None:
    ends = []
    for processes in (1, 2):
        torch.manual_seed(0)
        model = train(
            tmp_path / str(processes),
            model=q_model().model,
            loss_of=q_loss,
            steps=STEPS,
            lr=0.01,
            lora={},
            processes=processes,
            gradient_checkpointing=processes == 2,
        )
        ends.append(weights_of(model))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-4, atol=1e-5)


def test_trained_weights_are_float32_beside_a_bfloat16_trunk() -> None:
    model = q_model().model
    nn.Module.to(model, torch.bfloat16)
    with_adapters(model, Lora())
    dtypes = {(p.requires_grad, p.dtype) for p in model.parameters()}
    assert dtypes == {(True, torch.float32), (False, torch.bfloat16)}


def test_named_layers_alone_get_adapters() -> None:
    model = with_adapters(policy_model().model, Lora(target_modules=("q_proj", "mlp.up_proj")))
    trained = {name.split(".lora_")[0] for name, p in model.named_parameters() if p.requires_grad}
    layers = [f"model.layers.{layer}" for layer in (0, 1)]
    assert trained == {f"{at}.{n}" for at in layers for n in ("self_attn.q_proj", "mlp.up_proj")}


@pytest.mark.parametrize("name", ["query", "embed_tokens", "lm_head"])
def test_names_that_are_no_linear_layer_of_the_trunk_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"lora\.target_modules .*'{name}', .*down_proj, .*'all-linear'"):
        with_adapters(policy_model().model, Lora(target_modules=("q_proj", name)))


def test_muon_does_not_train_adapters() -> None:
    with pytest.raises(ValidationError, match=r"optimizer is 'muon', .*optimizer to 'adamw'"):
        Optimization(optimizer="muon", lora=Lora())


def test_without_adapters_a_manifest_does_not_name_them() -> None:
    manifest = Manifest(kind="policy", name="p")
    assert "lora" not in manifest.model_dump(mode="json")
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest
