"""Pruning of the last layer: its token-wise modules run only on the tokens that are read.

After the last layer's keys and values, a token whose output is not read affects no result. A module
that works on each token alone (queries, output projection, MLP) can therefore be given the read
rows only, and its output be put back among zeros.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from qguide.qnet.engine.uploads import upload

_OF_ATTENTION = ("q_proj", "o_proj", "dense")
_OF_LAYER = ("mlp",)


class _Read(threading.local):
    """Rows at which this thread's forward pass is read; None lets every token through."""

    rows: Tensor | None = None
    tokens: int = 0


class LastLayerPruning:
    """Hooks on the token-wise modules of a trunk's last layer, active within `to`.

    A trunk may serve several threads at once (a Q model and its shadow): each prunes its own
    forward passes.

    Attributes:
        layer: the last layer's index, None while nothing is pruned.
    """

    def __init__(self) -> None:
        self.layer: int | None = None
        self._read = _Read()
        self._handles: list[RemovableHandle] = []

    def attach(self, trunk: nn.Module, *, layer: int) -> None:
        """Prune this layer, the trunk's last; modules with unusual names stay as they are."""
        self.layer = layer
        for module in _token_wise(trunk, layer):
            self._handles.append(module.register_forward_pre_hook(self._take))
            self._handles.append(module.register_forward_hook(self._put_back))

    @contextmanager
    def to(self, rows: list[int], *, tokens: int, device: torch.device) -> Iterator[None]:
        """Within this, the modules compute a (1, `tokens`) batch at `rows` alone."""
        if self.layer is not None and len(rows) < tokens:
            self._read.rows = upload(rows, device, dtype=torch.long)
            self._read.tokens = tokens
        try:
            yield
        finally:
            self._read.rows = None

    def remove(self) -> None:
        """Let every token through again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.layer = None

    def _take(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._read.rows is None:
            return None
        hidden_BND, *others = inputs
        return (hidden_BND[:, self._read.rows], *others)

    def _put_back(self, _: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if self._read.rows is None:
            return None
        # The residual is added to all rows, so the shape has to be the whole one again.
        whole_BND = output.new_zeros((output.shape[0], self._read.tokens, output.shape[-1]))
        whole_BND[:, self._read.rows] = output
        return whole_BND


def _token_wise(trunk: nn.Module, layer: int) -> Iterator[nn.Module]:
    """Modules of the layer with that index that work on each token alone, by their usual names."""
    for parent in trunk.modules():
        attention = [m for m in parent.children() if getattr(m, "layer_idx", None) == layer]
        if len(attention) == 1:
            yield from _children(attention[0], _OF_ATTENTION)
            yield from _children(parent, _OF_LAYER)


def _children(parent: nn.Module, names: tuple[str, ...]) -> Iterator[nn.Module]:
    return (module for name, module in parent.named_children() if name in names)
