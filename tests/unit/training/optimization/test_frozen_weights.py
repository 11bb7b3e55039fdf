"""Frozen weights in bfloat16: half the memory, and what is trained stays in float32."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qguide.qnet.errors import ConfigError
from qguide.qnet.models.qnet import QNet
from qguide.training.optimization.adapters import merged
from qguide.training.optimization.objective import Loss
from qguide.training.optimization.trainer import Loop
from qguide.training.q_training.validation import require_packable
from tests.support.tiny_models import q_model
from tests.support.trainings import train, weights_of

TOKENS = torch.tensor([[1, 2, 3, 4, 5]])
STEPS = [[[1, 2, 3], [4, 5]], [[6, 7, 8]]] * 4
LORA = {"rank": 4}


def q_loss(model: nn.Module, interrupted_at: int | None = None) -> Any:
    passes = 0

    def loss(tokens: list[int]) -> Loss:
        nonlocal passes
        passes += 1
        if passes == interrupted_at:
            raise KeyboardInterrupt
        error = model(torch.tensor([tokens])) - torch.tensor(tokens) / 8
        return Loss(error.square().sum(), float(len(tokens)))

    return loss


def tiny(*, frozen: bool, rounded: bool = False) -> QNet:
    """A QNet; `frozen` freezes its trunk, `rounded` gives that bfloat16's values in float32."""
    model = q_model().model
    assert isinstance(model, QNet)
    model.trunk.requires_grad_(not frozen)
    if rounded:
        for weight in model.trunk.parameters():
            weight.data = weight.data.bfloat16().float()
    return model


def trained(folder: Path, model: nn.Module, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    fields: dict[str, Any] = {"lr": 0.01, "save_every_s": 1e-9, "average_last": 0.6}
    return train(folder, model=model, loss_of=q_loss, steps=STEPS, **fields | options)


@pytest.mark.parametrize("lora", [None, LORA], ids=["frozen trunk", "adapters"])
def test_only_frozen_weights_are_in_bfloat16(tmp_path: Path, lora: dict[str, int] | None) -> None:
    model = trained(tmp_path, tiny(frozen=lora is None), lora=lora, frozen_dtype="bfloat16")
    found = {(weight.requires_grad, weight.dtype) for weight in model.parameters()}
    assert found == {(True, torch.float32), (False, torch.bfloat16)}
    frozen = sum(w.nbytes for w in model.parameters() if not w.requires_grad)
    assert frozen == sum(w.nbytes for w in q_model().model.trunk.parameters()) // 2


@pytest.mark.parametrize("lora", [None, LORA], ids=["frozen trunk", "adapters"])
def test_what_is_trained_ends_near_a_float32_training(tmp_path: Path, lora: dict[str, int] | None) -> None:
    frozen = lora is None
    start = weights_of(tiny(frozen=frozen, rounded=True))
    model = tiny(frozen=frozen, rounded=True)
    whole = merged(trained(tmp_path / "float32", model, lora=lora))
    model = tiny(frozen=frozen)
    trained(tmp_path / "bfloat16", model, lora=lora, frozen_dtype="bfloat16")
    half = merged(model.float())
    moved = (weights_of(whole) - start).norm()
    assert (weights_of(half) - weights_of(whole)).norm() < 0.2 * moved


def test_what_is_written_is_in_float32_with_the_adapters_unrounded(tmp_path: Path) -> None:
    kept: list[Loop[Any]] = []
    torch.manual_seed(0)
    options: dict[str, Any] = {"lora": LORA, "frozen_dtype": "bfloat16", "lr": 0.01}
    train(tmp_path, model=tiny(frozen=False), loss_of=q_loss, steps=STEPS, inspect=kept.append, **options)
    layer = kept[0].model.trunk.layers[0].self_attn.q_proj
    update = layer.get_delta_weight("default").detach()
    base = layer.get_base_layer().weight.detach().float()
    written = kept[0].write(lambda whole: whole.state_dict())
    assert {weight.dtype for weight in written.values()} == {torch.float32}
    found: Tensor = written["trunk.layers.0.self_attn.q_proj.weight"]
    assert torch.allclose(found, base + update, atol=1e-7)
    assert float(update.abs().max()) > 1e-4


def test_a_broken_run_ends_where_a_whole_one_ends(tmp_path: Path) -> None:
    def end_of(folder: Path, interrupted_at: int | None = None) -> Tensor:
        torch.manual_seed(0)
        model = train(
            folder,
            model=tiny(frozen=True),
            loss_of=lambda model: q_loss(model, interrupted_at),
            steps=STEPS,
            frozen_dtype="bfloat16",
            lr=0.01,
            save_every_s=1e-9,
        )
        return weights_of(model)

    whole = end_of(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        end_of(tmp_path / "broken", interrupted_at=9)
    assert torch.equal(end_of(tmp_path / "broken"), whole)


@pytest.mark.alone
def test_two_processes_end_where_one_ends(tmp_path: Path) -> None:
    ends = [
        weights_of(trained(tmp_path / str(processes), tiny(frozen=True), frozen_dtype="bfloat16", processes=processes))
        for processes in (1, 2)
    ]
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-4, atol=1e-5)


def test_packing_is_compared_in_float32() -> None:
    model = tiny(frozen=True)
    for weight in model.trunk.parameters():
        weight.data = weight.data.bfloat16()
    require_packable(model)
    assert {weight.dtype for weight in model.trunk.parameters()} == {torch.bfloat16}


def test_without_frozen_weights_the_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"optimization\.frozen_dtype is 'bfloat16', .*optimization\.lora"):
        trained(tmp_path, tiny(frozen=False), frozen_dtype="bfloat16")
