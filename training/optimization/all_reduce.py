"""Sums over the processes that train one model, each with the whole of it.

torch's DistributedDataParallel is not used: it wants every process to make the same number of
passes and every pass to use every weight, but a step's micro-batches are divided by size, and a
mixture's experts may stay without tokens. The gradients of a step are added up once, at its end.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor, distributed, nn

BUCKET_ELEMENTS: Final = 16 * 1024 * 1024
"""Number of elements that are sent at once: few messages, and little memory for their copies."""


def all_reduce_sum(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over all processes; they have to be of one type and device."""
    if not distributed.is_initialized():
        return
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.flatten() for tensor in bucket])
        distributed.all_reduce(flat)
        for tensor, total in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
            tensor.copy_(total.view_as(tensor))


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up the gradients of all processes; one without a gradient counts as zeros."""
    if not distributed.is_initialized():
        return
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    all_reduce_sum(gradients)


def copy_weights_of_main(model: nn.Module) -> None:
    """Give the model the main process's weights in all processes."""
    if distributed.is_initialized():
        for tensor in (*model.parameters(), *model.buffers()):
            distributed.broadcast(tensor.detach(), src=0)


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    elements = 0
    for tensor in tensors:
        if bucket and elements + tensor.numel() > BUCKET_ELEMENTS:
            yield bucket
            bucket, elements = [], 0
        bucket.append(tensor)
        elements += tensor.numel()
    if bucket:
        yield bucket
