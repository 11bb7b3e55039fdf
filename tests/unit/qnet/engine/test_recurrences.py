"""Recurrences of hybrids: those of transformers' reference code, whatever is read at once."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel

from qguide.qnet.engine.recurrences import (
    _OWN,
    _Recurrence,
    adopt_recurrences,
    causal_convolution,
    delta_rule,
    state_space_scan,
)
from tests.support.architectures import enliven, tiny_config

LENGTHS = [(1, 2), (3, 12), (1, 32), (2, 75)]
HEADS, SHARED, SIZE, STATE = 4, 2, 8, 6
pytestmark = pytest.mark.filterwarnings("ignore")


def reference(model_type: str, name: str) -> Callable[..., Any]:
    code = import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    found = getattr(code, name)
    return found.reference if isinstance(found, _Recurrence) else found


def gradients(outputs: tuple[Tensor, ...], inputs: list[Tensor]) -> list[Tensor]:
    loss = sum((output.sin().sum() for output in outputs), torch.zeros(()))
    return list(torch.autograd.grad(loss, inputs))


def assert_same(ours: Callable[..., Any], theirs: Callable[..., Any], inputs: list[Tensor], **options: Any) -> None:
    """Equal outputs, final states and gradients."""
    inputs = [x.requires_grad_() for x in inputs]
    found, expected = (run(*inputs, **options) for run in (ours, theirs))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients(found, inputs), gradients(expected, inputs), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("behind_state", [False, True])
@pytest.mark.parametrize(("rows", "tokens"), LENGTHS)
def test_a_delta_rule_is_the_reference(rows: int, tokens: int, behind_state: bool) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, rows, tokens, SHARED, SIZE) / SIZE  # longer keys would explode
    decay, beta = -torch.rand(rows, tokens, HEADS), torch.rand(rows, tokens, HEADS)
    inputs = [query, key, torch.randn(rows, tokens, HEADS, SIZE), decay, beta]
    state = torch.randn(rows, HEADS, SIZE, SIZE) if behind_state else None
    assert_same(
        delta_rule,
        reference("qwen3_5", "torch_chunk_gated_delta_rule"),
        inputs,
        initial_state=state,
        output_final_state=True,
        use_qk_l2norm_in_kernel=behind_state,
    )


@pytest.mark.parametrize("behind_state", [False, True])
@pytest.mark.parametrize(("rows", "tokens"), LENGTHS)
def test_a_state_space_is_the_reference(rows: int, tokens: int, behind_state: bool) -> None:
    torch.manual_seed(0)
    hidden, dt = torch.randn(rows, tokens, HEADS, SIZE), torch.randn(rows, tokens, HEADS)
    inputs = [hidden, dt, -torch.rand(HEADS), *torch.randn(2, rows, tokens, SHARED, STATE)]
    state = torch.randn(rows, HEADS, SIZE, STATE) if behind_state else None
    assert_same(
        state_space_scan,
        reference("granitemoehybrid", "mamba2_chunk_scan"),
        inputs,
        chunk_size=16,
        D=torch.rand(HEADS) if behind_state else None,
        dt_bias=torch.randn(HEADS),
        initial_states=state,
        dt_softplus=True,
        dt_limit=(0.01, 2.0),
        return_final_states=True,
    )


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("tokens", [1, 2, 40])
def test_a_convolution_is_the_reference(tokens: int, activation: str | None) -> None:
    inputs = [torch.randn(2, SIZE, tokens), torch.randn(SIZE, 4), torch.randn(SIZE)]
    theirs = reference("lfm2", "causal_conv1d_fn")
    assert_same(
        lambda *args, **options: (causal_convolution(*args, **options),),
        lambda *args, **options: (theirs(*args, **options),),
        inputs,
        activation=activation,
    )


@pytest.mark.parametrize("model_type", ["falcon_h1", "granitemoehybrid", "kimi_linear", "lfm2", "qwen3_5_text"])
def test_a_model_that_adopts_them_has_its_outputs(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = AutoModel.from_config(tiny_config(model_type)).eval()
    enliven(model)
    code = import_module(type(model).__module__)
    names = [name for name in _OWN if hasattr(code, name)]
    for name in names:
        found = getattr(code, name)
        monkeypatch.setattr(code, name, found.reference if isinstance(found, _Recurrence) else found)
    tokens = torch.arange(1, 21)[None]
    with torch.inference_mode():
        expected = model(input_ids=tokens, use_cache=False).last_hidden_state
        adopt_recurrences(model)
        adopt_recurrences(model)  # once per loaded model: the second changes nothing
        found = model(input_ids=tokens, use_cache=False).last_hidden_state
    adopted = [getattr(code, name) for name in names]
    assert adopted
    assert not any(isinstance(one.reference, _Recurrence) for one in adopted)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
