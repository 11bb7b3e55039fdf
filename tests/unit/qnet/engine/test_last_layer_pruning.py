"""The last layer works on the tokens that are read."""

import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, get_ident
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qguide.qnet.engine import packed_model as packed_module
from qguide.qnet.engine.kernels import LastLayerPruning
from qguide.qnet.engine.packed_model import PackedModel, hidden_states_of, history_segment
from qguide.qnet.engine.prefix_cache import Entry
from tests.support.tiny_models import ARCHITECTURES, q_model

TOKENS = [5, 9, 3, 7, 11, 2, 8, 4]


def packed_of(model: Any) -> PackedModel:
    read = hidden_states_of(model.trunk)
    return PackedModel(model.trunk, read, cache_bytes=0, tokens_per_forward=64)


def mlp_rows(trunk: nn.Module) -> list[int]:
    """Record how many tokens go through each layer's MLP from now on."""
    seen: list[int] = []

    def count(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0].shape[1])

    for name, module in trunk.named_modules():
        if name.endswith(".mlp"):
            module.register_forward_pre_hook(count)
    return seen


def read_last_of(packed: PackedModel) -> Tensor:
    return packed.run([history_segment(Entry(), TOKENS, read_last=True)])[0]


@torch.inference_mode()
def last_hidden_state(model: Any) -> Tensor:
    hidden_BTD: Tensor = model.trunk(torch.tensor([TOKENS]), use_cache=False).last_hidden_state
    return hidden_BTD[0, -1]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_last_mlp_gets_the_read_tokens_alone_and_their_states_stay(architecture: str) -> None:
    model = q_model(architecture).model
    expected_D = last_hidden_state(model)
    packed = packed_of(model)
    seen = mlp_rows(model.trunk)
    torch.testing.assert_close(read_last_of(packed), expected_D, rtol=0, atol=2e-5)
    assert seen == [len(TOKENS), 1]


def test_a_history_that_nobody_reads_skips_the_last_mlp() -> None:
    model = q_model().model
    packed = packed_of(model)
    seen = mlp_rows(model.trunk)
    assert packed.run([history_segment(Entry(), TOKENS)]).numel() == 0
    assert seen == [len(TOKENS), 0]


def test_the_model_outside_of_packed_runs_works_on_every_token() -> None:
    model = q_model().model
    packed = packed_of(model)
    read_last_of(packed)
    seen = mlp_rows(model.trunk)
    model(torch.tensor([TOKENS]))
    assert seen == [len(TOKENS), len(TOKENS)]


def test_hooks_go_when_their_packed_model_goes() -> None:
    mlp = q_model().model
    before = sum(len(m._forward_pre_hooks) for m in mlp.modules())
    packed = packed_of(mlp)
    assert sum(len(m._forward_pre_hooks) for m in mlp.modules()) > before
    del packed
    gc.collect()
    assert sum(len(m._forward_pre_hooks) for m in mlp.modules()) == before


def test_an_mlp_that_mixes_tokens_is_not_narrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mixing(nn.Module):
        """Its output depends on how many tokens it is given."""

        def __init__(self, mlp: nn.Module) -> None:
            super().__init__()
            self.inner = mlp

        def forward(self, hidden_BND: Tensor) -> Tensor:
            mixed: Tensor = self.inner(hidden_BND)
            return mixed + 0.5 * (hidden_BND.shape[1] in (1, 3))

    model = q_model().model
    last: Any = model.trunk.layers[-1]
    last.mlp = Mixing(last.mlp)
    narrowings: list[LastLayerPruning] = []

    class Watched(LastLayerPruning):
        def __init__(self) -> None:
            super().__init__()
            narrowings.append(self)

    monkeypatch.setattr(packed_module, "LastLayerPruning", Watched)
    packed = packed_of(model)
    assert narrowings[0].layer is None
    seen = mlp_rows(model.trunk)
    read_last_of(packed)
    assert seen == [len(TOKENS), len(TOKENS)]


def test_two_threads_over_one_trunk_do_not_narrow_each_other() -> None:
    model = q_model().model
    first, second = packed_of(model), packed_of(model)
    expected_D = last_hidden_state(model)
    inside = Barrier(2)
    started = set[int]()

    def meet(*_: object) -> None:
        """Both threads stand before the last layer, each with its rows set, and then go on."""
        if get_ident() not in started:
            started.add(get_ident())
            inside.wait(timeout=30)

    model.trunk.layers[-1].register_forward_pre_hook(meet)
    whole = replace(history_segment(Entry(), TOKENS), read=(2, 7))
    with ThreadPoolExecutor(2) as pool:
        last = pool.submit(read_last_of, first)
        both = pool.submit(second.run, [whole])
        torch.testing.assert_close(last.result(), expected_D, rtol=0, atol=2e-5)
        torch.testing.assert_close(both.result()[1], expected_D, rtol=0, atol=2e-5)
