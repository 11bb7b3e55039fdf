"""Memory of a trunk that scores, from its configuration alone, and of one that is checked.

The former is built on torch's meta device, where tensors have shapes and no bytes, and runs one
forward pass there as `PackedModel` runs it on a GPU. So any architecture is measured, not reckoned.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModel, PretrainedConfig, PreTrainedModel

from qguide.qnet.engine.attention import PACKED_ATTENTION, AttentionMetadata, register
from qguide.qnet.engine.kv_buffer import KVBuffer, PackedSegment, joined
from qguide.qnet.engine.recurrent_states import RecurrentState, attention_layers, cache_of, name_of_cache
from qguide.qnet.memory_limits import available_bytes


@dataclass(frozen=True, slots=True)
class ScoringMemory:
    """Bytes that scoring takes.

    Attributes:
        token: keys and values of one token.
        session: keys and values of one history, with the room that a buffer keeps, and a hybrid's states.
        forward: most that one forward pass takes beside weights, keys and values.
        state: what layers of a hybrid keep behind one sequence, however long.
        failure: what a pass raised, if all but the weights is unknown and 0.
    """

    parameters: int
    weights: int
    token: int
    session: int
    forward: int
    state: int = 0
    failure: Exception | None = None

    def sessions(self, available: int) -> int:
        """Number of histories that fit beside the weights and a forward pass."""
        return max(0, (available - self.weights - self.forward) // self.session)


def scoring_memory(
    config: PretrainedConfig, *, history: int, tokens_per_forward: int, dtype: torch.dtype, candidates: int = 0
) -> ScoringMemory:
    """Measure scoring.

    Args:
        history: tokens of a history.
        tokens_per_forward: longest packed row of a forward pass, at the end of a history.
        candidates: of a step, whose states a hybrid keeps until the next.
    """
    register()
    with torch.device("meta"):
        trunk: PreTrainedModel = AutoModel.from_config(config, dtype=dtype).eval()
    parameters = sum(weight.numel() for weight in trunk.parameters())
    weights = sum(weight.nbytes for weight in (*trunk.parameters(), *trunk.buffers()))
    buffer, one, attention = KVBuffer(), KVBuffer(), trunk.config._attn_implementation
    fresh = min(history, tokens_per_forward)
    try:
        trunk.set_attn_implementation(PACKED_ATTENTION)
        forward = _forward(trunk, buffer, history - fresh, fresh)
        _forward(trunk, one, 0, 1)
        packed = len(buffer.keys) == config.num_hidden_layers and not trunk._is_stateful
    except Exception:  # a foreign architecture can fail in any way
        packed = False
    # Some layers have attention and a state side by side, which the buffers do not show.
    if not packed:
        try:
            trunk.set_attn_implementation(attention)
            state, forward = _behind(trunk, history - fresh, fresh)
        except Exception as error:
            return ScoringMemory(parameters, weights, 0, 0, 0, failure=error)
        attended = state.copied_bytes - state.nbytes
        session = attended + (1 + candidates) * state.nbytes
        return ScoringMemory(parameters, weights, attended // history, session, forward, state.nbytes)
    token = sum(tensor[:, :1].nbytes for tensor in (*one.keys, *one.values))
    return ScoringMemory(parameters, weights, token, buffer.nbytes, forward - buffer.nbytes)


@contextmanager
def in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Within this, a model of half precision has float32 weights of the same values, or a `MemoryError`.

    Half precision rounds by as much as a state that is lost may change on a short history.
    """
    tensors = chain(model.parameters(), model.buffers())
    halves = [(t, t.dtype) for t in tensors if t.dtype in (torch.bfloat16, torch.float16)]
    more = sum(2 * tensor.numel() for tensor, _ in halves)
    if more > (free := _free_bytes(model.device)):
        raise MemoryError(
            f"the check in float32 takes {more:,} bytes more, and {free:,} are free; load a "
            "smaller model, or with dtype float32"
        )
    try:
        for tensor, _ in halves:
            tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, dtype in halves:
            tensor.data = tensor.data.to(dtype)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_bytes()


@torch.inference_mode()
def _forward(trunk: PreTrainedModel, buffer: KVBuffer, known: int, fresh: int) -> int:
    """Run so many tokens behind known ones; the most bytes that were in use at once."""
    positions = list(range(known, known + fresh))
    segment = PackedSegment(buffer, [0] * fresh, positions, known, joined((), range(known)), read=(fresh - 1,))
    peak = PeakBytes(trunk)
    with peak:
        trunk(
            input_ids=torch.zeros((1, fresh), dtype=torch.long, device="meta"),
            position_ids=torch.tensor([positions], device="meta"),
            attention_mask=torch.ones((1, 1, 1, 1), dtype=torch.bool, device="meta"),
            use_cache=False,
            metadata=AttentionMetadata([segment]),
        )
    return peak.most


@torch.inference_mode()
def _behind(trunk: PreTrainedModel, known: int, fresh: int) -> tuple[RecurrentState, int]:
    """State that a hybrid's pass over so many tokens behind known ones leaves, and the most bytes in use at once."""
    token_ids = torch.zeros((1, fresh), dtype=torch.long, device="meta")
    cache = cache_of(trunk(input_ids=token_ids[:, :2], use_cache=True))
    for layer in attention_layers(cache):
        layer.keys, layer.values = (t.new_empty((*t.shape[:2], known, t.shape[3])) for t in (layer.keys, layer.values))
    peak = PeakBytes(trunk)
    with peak:
        output = trunk(input_ids=token_ids, use_cache=True, **{name_of_cache(trunk): cache})
    return RecurrentState.of(cache_of(output), torch.empty(0, device="meta"), known + fresh, None), peak.most


class PeakBytes(TorchDispatchMode):
    """Most bytes of the tensors that live at once, a model's own left out."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        own = (*model.parameters(), *model.buffers())
        self._seen = weakref.WeakSet(tensor.untyped_storage() for tensor in own)
        self._now = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        self._seen.add(storage)
        self._now += storage.nbytes()
        self.most = max(self.most, self._now)
        weakref.finalize(storage, self._free, storage.nbytes())

    def _free(self, size: int) -> None:
        self._now -= size
