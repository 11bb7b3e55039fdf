"""Packed trees on trunks with recurrent layers: each path from the root to a leaf as a row.

A recurrent layer reads tokens in their order, whatever the mask, so such a trunk gets whole paths
in padded batches (padding is on the right, where causal layers never look). Each distinct token is
read from one path alone; its output is that of the packed row, and so are losses and gradients.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from qguide.qnet.engine.token_trie import TokenTrie
from qguide.qnet.engine.uploads import upload

RunPaths = Callable[[Tensor, Tensor], Tensor]
"""From paths (B, T), padded with zeros, and N indices into their B * T tokens to outputs (N, …)."""

_LEAST_TOKENS = 2048


def has_recurrent_layers(model: PreTrainedModel) -> bool:
    """True if an architecture declares layers that carry a state from token to token."""
    if model._is_stateful:
        return True
    layers: list[Any] = DynamicCache(config=model.config).layers
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)


def outputs_of_paths(
    model: PreTrainedModel, run: RunPaths, tree: TokenTrie, wanted: Sequence[int]
) -> Tensor:
    """(N, …) outputs at some of a tree's distinct tokens, from one pass of each path.

    No pass has more tokens than the tree (or 2,048, if that is more), padding included. With
    gradient checkpointing, each of several passes is computed again in the backward pass.

    Args:
        run: one forward pass.
        wanted: indices of the tokens.
    """
    again = torch.is_grad_enabled() and _checkpoints(model)
    batches = list(_batches(_paths(tree, wanted), max(len(tree), _LEAST_TOKENS)))
    outputs, order = [], []
    for batch in batches:
        longest = max(len(path) for path, _ in batch)
        ids = [[tree.token_ids[i] for i in path] + [0] * (longest - len(path)) for path, _ in batch]
        read = [row * longest + column for row, (_, own) in enumerate(batch) for column in own]
        order += [path[column] for path, own in batch for column in own]
        inputs = upload(ids, model.device), upload(read, model.device)
        if again and len(batches) > 1:
            outputs.append(checkpoint(run, *inputs, use_reentrant=False))
        else:
            outputs.append(run(*inputs))
    row_of = {token: row for row, token in enumerate(order)}
    return torch.cat(outputs)[upload([row_of[token] for token in wanted], model.device)]


def _checkpoints(model: PreTrainedModel) -> bool:
    # Renamed in transformers 5.20; the old name warns.
    found = getattr(model, "is_activation_checkpointing", None)
    return bool(model.is_gradient_checkpointing if found is None else found)


def _paths(tree: TokenTrie, wanted: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Paths to the leaves, each with the columns of the wanted tokens that no path before had."""
    missing = set(wanted)
    for leaf in sorted(set(range(len(tree))) - set(tree.before)):
        path = tree.path_to(leaf)
        own = [column for column, token in enumerate(path) if token in missing]
        if own:
            missing.difference_update(path)
            yield path[: own[-1] + 1], own


def _batches(
    paths: Iterator[tuple[list[int], list[int]]], room: int
) -> Iterator[list[tuple[list[int], list[int]]]]:
    """Paths of similar length together, at least one, and up to so many tokens with padding."""
    batch: list[tuple[list[int], list[int]]] = []
    for path in sorted(paths, key=lambda one: len(one[0])):
        if batch and len(path[0]) * (len(batch) + 1) > room:
            yield batch
            batch = []
        batch.append(path)
    if batch:
        yield batch
