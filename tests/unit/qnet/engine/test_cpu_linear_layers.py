"""Linear layers and attention in oneDNN: the same outputs, and training as before."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from qguide.qnet.engine import kernels
from qguide.qnet.engine.kernels import (
    OneDnnLinear,
    Scoring,
    dense_attention,
    one_dnn_is_faster,
    one_dnn_is_faster_on_turned,
    speed_up_linear_layers,
    tiled_attention,
)

WIDTH = 384
needs_one_dnn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "one_dnn_is_faster_on_turned", lambda: True)


@needs_one_dnn
@pytest.mark.usefixtures("faster")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 4, 50])
def test_outputs_are_those_of_an_ordinary_layer(rows: int, bias: bool) -> None:
    ordinary = nn.Linear(WIDTH, 2 * WIDTH, bias=bias)
    fast = copy.deepcopy(ordinary)
    speed_up_linear_layers(fast)
    assert isinstance(fast, OneDnnLinear)
    for inputs in (torch.randn(2, rows, WIDTH), torch.randn(2, WIDTH, rows).transpose(1, 2)):
        with torch.inference_mode():
            torch.testing.assert_close(fast(inputs), ordinary(inputs), rtol=1e-4, atol=1e-5)
        fast(inputs).sum().backward()
        ordinary(inputs).sum().backward()
    torch.testing.assert_close(fast.weight.grad, ordinary.weight.grad, rtol=0, atol=0)


@needs_one_dnn
@pytest.mark.usefixtures("faster")
def test_weights_may_change_and_be_of_half_precision_and_the_layer_saved() -> None:
    layer = nn.Linear(WIDTH, WIDTH)
    speed_up_linear_layers(layer)
    inputs = torch.randn(8, WIDTH)
    with torch.inference_mode():
        before = layer(inputs)
    with torch.no_grad():
        layer.weight.mul_(2)
        layer.bias.mul_(2)
    with torch.inference_mode():
        torch.testing.assert_close(layer(inputs), 2 * before)
        torch.testing.assert_close(pickle.loads(pickle.dumps(layer))(inputs), 2 * before)
        half = layer.to(torch.bfloat16)(inputs.to(torch.bfloat16))
    assert half.dtype == torch.bfloat16


@needs_one_dnn
@pytest.mark.usefixtures("faster")
@pytest.mark.parametrize("tied", [False, True])
def test_weights_lie_turned_but_for_an_embeddings_and_are_saved_as_ever(tied: bool, tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=WIDTH,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_attention_heads=4,
        num_hidden_layers=1,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).eval()
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    speed_up_linear_layers(model)
    assert model.model.layers[0].mlp.up_proj.weight.t().is_contiguous()
    assert model.model.embed_tokens.weight.is_contiguous()
    assert model.lm_head.weight.is_contiguous() is tied
    model.save_pretrained(tmp_path)
    for found in (model, LlamaForCausalLM.from_pretrained(tmp_path)):
        for name, weight in found.state_dict().items():
            torch.testing.assert_close(weight, weights[name], rtol=0, atol=0)


@needs_one_dnn
@pytest.mark.parametrize("rows", [16, 70, 96])
def test_attention_by_blocks_is_that_of_the_tiled_kernel(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    query_HTD = torch.randn(8, rows, 64) / 4
    # As they lie in a buffer with room for more.
    keys, values = torch.randn(2, 2, 400, 64)[:, :, 50:350]
    found = []
    for faster in (False, True):
        monkeypatch.setattr(kernels, "one_dnn_is_faster", lambda faster=faster: faster)
        with torch.inference_mode():
            found.append(tiled_attention(query_HTD, (keys, values)))
    for tiled, by_blocks in zip(*found, strict=True):
        torch.testing.assert_close(by_blocks, tiled, rtol=1e-5, atol=1e-5)
    scores_HTC = query_HTD @ keys.repeat_interleave(4, dim=0).mT
    torch.testing.assert_close(found[1][1], scores_HTC.logsumexp(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("sinks", [False, True])
def test_attention_in_half_precision_loses_no_more_than_rounding(rows: int, sinks: bool) -> None:
    query_HTD, buffer = torch.randn(8, rows, 64) / 8, torch.randn(2, 2, 4096, 64)
    bias_TB = torch.zeros(rows, rows).masked_fill_(torch.ones(rows, rows).triu(1) > 0, float("-inf"))
    found = []
    for dtype in (torch.bfloat16, torch.float64):
        query, states, bias = (t.bfloat16().to(dtype) for t in (query_HTD, buffer, bias_TB))
        # Two parts with room behind each head's, and so many columns that a sum in bfloat16 would lose most.
        parts = [tuple(states[:, :, start : start + count]) for start, count in ((0, 3000), (3500, rows))]
        scoring = Scoring(sinks_H=torch.ones(8) if sinks else None)
        with torch.inference_mode():
            found.append(dense_attention(query, parts, bias, (), scoring).double())
    torch.testing.assert_close(*found, rtol=0.02, atol=0.002)


@pytest.mark.usefixtures("faster")
def test_small_layers_and_subclasses_stay_as_they_are() -> None:
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(8, 8), Own(WIDTH, WIDTH))
    speed_up_linear_layers(model)
    assert [type(module) for module in model] == [nn.Linear, Own]


def test_the_choice_is_made_once() -> None:
    assert one_dnn_is_faster() is one_dnn_is_faster()
    assert one_dnn_is_faster_on_turned() is one_dnn_is_faster_on_turned()
