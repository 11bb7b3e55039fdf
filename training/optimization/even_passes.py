"""Equally many passes of a sharded trunk in all processes.

FSDP gathers a layer's weights from all processes whenever one runs it, so all have to run it equally
often. Each process has packed trees of its own, and a trunk with recurrent layers reads a tree in as
many passes as its paths need.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import nn
from transformers import PreTrainedModel

from qguide.qnet.engine.tree_branches import has_recurrent_layers, read_alike
from qguide.training.optimization.launch import all_reduce_sum
from qguide.training.optimization.objective import Loss

_FEWEST_TOKENS: Final = 2
"""Of one token, some architectures' layers run code of their own."""


class EvenPasses:
    """Losses for whose passes of a trunk all processes run it.

    Before each pass the processes tell each other which of them have one. Those that have none run
    the trunk on two tokens, whose outputs count 0 times.

    Args:
        model: the trunk, or what has it.
    """

    def __init__(self, model: nn.Module) -> None:
        models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
        self._trunk = models[-1]
        self._counting = False
        for each in models:
            read_alike(each)
        self._trunk.register_forward_pre_hook(self._announce)

    @staticmethod
    def are_needed(model: nn.Module) -> bool:
        """True for a model whose passes over trees differ in number."""
        *_, trunk = (module for module in model.modules() if isinstance(module, PreTrainedModel))
        return has_recurrent_layers(trunk)

    def of(self, loss: Callable[[], Loss]) -> Loss:
        """A loss whose passes all processes wait for, while they compute theirs."""
        self._counting = True
        try:
            found = loss()
        finally:
            self._counting = False
        total = found.total
        while self._any_has(0.0):
            ids_BT = torch.zeros((1, _FEWEST_TOKENS), dtype=torch.long, device=total.device)
            total = total + 0.0 * self._trunk(input_ids=ids_BT, use_cache=False)[0].sum()
        return Loss(total, found.weight)

    def _announce(self, *_: object) -> None:
        if self._counting:
            self._any_has(1.0)

    def _any_has(self, own: float) -> bool:
        """Tell the other processes whether this one has a pass; true if any has."""
        found = torch.full((1,), own, device=self._trunk.device)
        all_reduce_sum([found])
        return bool(found.item())
