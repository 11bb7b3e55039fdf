"""Runs a transformers model on packed segments of many conversations.

The policy and the scorer share this: the prefix cache, the cutting of long histories into forward passes, and a
self-check at load that refuses an architecture whose packed outputs differ from its ordinary ones.
"""

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from qguide.qnet.engine.attention import CHUNKED_ON, PACKED_ATTENTION, AttentionMetadata, register
from qguide.qnet.engine.context_length import context_length, shifting_rope
from qguide.qnet.engine.kernels import LastLayerPruning, speed_up_linear_layers, upload
from qguide.qnet.engine.kv_buffer import KVBuffer, PackedSegment, joined
from qguide.qnet.engine.prefix_cache import Entry, PrefixCache
from qguide.qnet.engine.stack_layout import stack_alike
from qguide.qnet.engine.stacks import Beginnings, Stack
from qguide.qnet.engine.token_trie import common_prefix
from qguide.qnet.engine.windows import chooses, choosing_few, shortened, window_of
from qguide.qnet.errors import CheckpointError
from qguide.qnet.sliced_scorer import finish

Result = TypeVar("Result")

Passes = Generator[list[PackedSegment], None, Result]
"""Forward passes, each shown before it runs, and what came of all: others may take their turn between two."""

Reader = Callable[[Tensor | None, dict[str, Any]], Tensor]
"""Outputs at the given rows of a (1, N) batch, or at all of them."""

Salted = tuple[str, list[int]]
"""A cache salt, and a history's tokens, which are known only where they were kept under it."""

DEFAULT_CACHE_BYTES = 2 * 1024**3
DEFAULT_TOKENS_PER_FORWARD = 2048

_PROBE_TOKENS = 12
_PROBED_WINDOW = 4
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
_HALF_TOLERANCE = 0.1


class PackedModel:
    """A model, the prefixes it remembers, and forward passes over packed segments.

    Args:
        read: how outputs are read: `logits_of(model)` or `hidden_states_of(trunk)`.

    Attributes:
        context: most tokens of a sequence; a window, where it is not known which layers have it.

    Raises:
        CheckpointError: the architecture's packed outputs differ from its ordinary ones.
    """

    def __init__(self, trunk: PreTrainedModel, read: Reader, *, cache_bytes: int, tokens_per_forward: int) -> None:
        register()
        self.context = context_length(trunk.config)
        self.store = PrefixCache(cache_bytes=cache_bytes)
        self._read = read
        self._device = trunk.device
        self._tokens_per_forward = tokens_per_forward
        self._window = window_of(trunk.config) or 0
        self._pruning = LastLayerPruning()
        # The hooks live as long as the trunk, which may outlive this and serve another.
        weakref.finalize(self, self._pruning.remove)
        self._adopt(trunk.eval())

    @contextmanager
    def lease(self, histories: Sequence[Salted], fresh_tokens: Sequence[int], *, spare: int) -> Iterator[list[Entry]]:
        """Entries for these histories, kept afterwards, or dropped after a failure.

        Args:
            fresh_tokens: what `compute_beginnings` returned for them.
            spare: how many last tokens are computed again even where they are known.
        """
        entries: list[Entry] = []
        try:
            for (salt, token_ids), tokens in zip(histories, fresh_tokens, strict=True):
                entry = self.store.lease(token_ids, at_most=len(token_ids) - spare, cache_salt=salt)
                entries.append(entry)
                entry.fresh_tokens = min(tokens, len(entry.token_ids))
            yield entries
        except BaseException:
            for entry in entries:
                self.store.discard(entry)
            raise
        for entry in entries:
            self.store.commit(entry)

    @torch.inference_mode()
    def compute_beginnings(self, histories: Sequence[Salted], *, spare: int) -> Passes[list[int]]:
        """Compute uncached prefixes that several of these histories share; how many tokens that took, by history."""
        computed = [0] * len(histories)
        # Sorted, because then the longest beginning that a history shares with any other it shares with a neighbour.
        in_order = sorted(range(len(histories)), key=histories.__getitem__)
        for one, other in pairwise(in_order):
            (salt, mine), (other_salt, theirs) = histories[one], histories[other]
            if salt != other_salt:
                continue
            # Short of the last `spare` tokens of both, which are computed anew for their outputs.
            known_by_both = min(common_prefix(mine, theirs), len(mine) - spare, len(theirs) - spare)
            beginning = mine[: max(0, known_by_both)]
            if self.store.lacks(beginning, cache_salt=salt):
                computed[one] = yield from self._compute((salt, beginning), owner=one)
        return computed

    def _compute(self, beginning: Salted, *, owner: int) -> Passes[int]:
        """Compute a prefix and keep it; returns how many tokens that took."""
        with self._extended(beginning) as entry:
            segment = history_segment(entry, beginning[1], owner=owner)
            yield from self.passes([segment])
        entry.token_ids, entry.branches = beginning[1], []
        self.store.add(entry)
        return len(segment.token_ids)

    @contextmanager
    def _extended(self, history: Salted) -> Iterator[Entry]:
        """The entry of a history, to be extended in the block; it is dropped after a failure."""
        salt, token_ids = history
        entry = self.store.lease(token_ids, at_most=len(token_ids), cache_salt=salt)
        try:
            yield entry
        except BaseException:
            self.store.discard(entry)
            raise

    @torch.inference_mode()
    def read_ahead(self, history: Salted, *, begin: Callable[[int], None]) -> Iterator[None]:
        """Compute a history that has no candidates yet, one forward pass after the other.

        Each pass is kept at once, so that a request which comes in between finds it, and nothing is
        leased while this waits for its next turn.
        """
        goes_on = True
        while goes_on:
            goes_on = self._read_on(history, begin)
            yield

    def _read_on(self, history: Salted, begin: Callable[[int], None]) -> bool:
        """Compute and keep the next pass of a history; False once all of it is known."""
        _, token_ids = history
        with self._extended(history) as entry:
            known = token_ids[: len(entry.token_ids) + self._tokens_per_forward]
            segment = history_segment(entry, known)
            if segment.token_ids:
                begin(len(segment.token_ids))
                # Room for all of it, so that no later pass has to copy what is there.
                entry.buffer.reserve(len(token_ids))
                self.forward([segment])
        entry.token_ids, entry.branches = known, []
        self.store.commit(entry)
        return len(known) < len(token_ids)

    @torch.inference_mode()
    def run(self, segments: Iterable[PackedSegment]) -> Tensor:
        """The outputs at every segment's `read` tokens, (reads, …), in order."""
        return finish(self.passes(segments))

    @torch.inference_mode()
    def passes(self, segments: Iterable[PackedSegment]) -> Passes[Tensor]:
        """The same as `run`, one forward pass after the other."""
        outputs = []
        for batch in self.batches(segments):
            yield batch
            outputs.append(self.forward(batch))
        return torch.cat(outputs)

    @contextmanager
    def stacked(
        self, buffers: Sequence[KVBuffer], histories: Sequence[Salted]
    ) -> Iterator[tuple[list[int], list[Stack | Beginnings]]]:
        """Put buffers of like length side by side, where that makes passes of few tokens faster.

        Args:
            histories: what each buffer holds.

        Yields:
            The order in which the buffers have to be packed, and what keeps them side by side.
        """
        if len(buffers) == 1 or self._window or self._device.type not in CHUNKED_ON:
            yield list(range(len(buffers))), []
            return
        layout = stack_alike(buffers, histories, room=self.store.room_for_copies)
        with self.store.copying(layout.nbytes):
            yield layout.order, layout.build()

    def batches(self, segments: Iterable[PackedSegment]) -> Iterator[list[PackedSegment]]:
        """The segments of each forward pass, in order; a long one is cut where its tokens see each other causally."""
        batch: list[PackedSegment] = []
        room = self._tokens_per_forward
        for segment in segments:
            for part in _parts(segment, self._tokens_per_forward):
                if batch and len(part.token_ids) > room:
                    yield batch
                    batch, room = [], self._tokens_per_forward
                batch.append(part)
                room -= len(part.token_ids)
        if batch:
            yield batch

    @torch.inference_mode()
    def forward(self, batch: list[PackedSegment]) -> Tensor:
        """The outputs at the `read` tokens of the segments of one forward pass."""
        # One row of all tokens, without padding: sessions differ in length, and a rectangle would
        # compute its longest row for each. Which token sees which is left to the attention.
        metadata = AttentionMetadata(batch, last_layer=self._pruning.layer, window=self._window)
        inputs = self._inputs(batch)
        read, tokens = metadata.read_rows, inputs["input_ids"].shape[1]
        rows = upload(read, self._device, dtype=torch.long)
        with self._pruning.to(sorted(set(read)), tokens=tokens, device=self._device):
            return self._read(rows, {**inputs, "metadata": metadata})

    def _inputs(self, segments: Sequence[PackedSegment]) -> dict[str, Tensor]:
        tokens = [token for segment in segments for token in segment.token_ids]
        positions = [position for segment in segments for position in segment.positions]
        return {
            "input_ids": upload([tokens], self._device),
            "position_ids": upload([positions], self._device),
            # A 4D mask is passed through as it is, so none is built for the packed row.
            "attention_mask": torch.ones((1, 1, 1, 1), dtype=torch.bool, device=self._device),
        }

    def _adopt(self, trunk: PreTrainedModel) -> None:
        """Replace the trunk's attention by the packed one, and verify that no output changes."""
        _refuse_shifting_positions(trunk.config)
        speed_up_linear_layers(trunk)
        ordinary = trunk.config._attn_implementation
        # Chosen tokens are a mask for ordinary attention alone.
        self._expected_of = ordinary if chooses(trunk) else PACKED_ATTENTION
        try:
            with choosing_few(trunk):
                self._replace_attention(trunk)
                self._prune_last_layer(trunk)
        except CheckpointError:
            trunk.set_attn_implementation(ordinary)
            raise

    def _replace_attention(self, trunk: PreTrainedModel) -> None:
        try:
            trunk.set_attn_implementation(PACKED_ATTENTION)
            if self._window and not self._packs_windows(trunk):
                self.context, self._window = min(self.context, self._window), 0
            difference = self._probe(trunk)
        except Exception as error:  # a foreign architecture can fail in any way
            raise CheckpointError(_unsupported(trunk, str(error))) from error
        # `not <=` and not `>`, because a NaN has to be refused, too.
        if not difference <= _TOLERANCE.get(trunk.dtype, _HALF_TOLERANCE):
            raise CheckpointError(_unsupported(trunk, f"outputs differ by {difference:.2g}"))

    def _packs_windows(self, trunk: PreTrainedModel) -> bool:
        """True if windows do to packed outputs what they do to ordinary ones.

        The probe is shorter than any model's window, so it is made with a shorter one.
        """
        window = self._window
        self._window = min(_PROBED_WINDOW, window)
        try:
            with shortened(trunk.config, self._window):
                return self._probe(trunk) <= _TOLERANCE.get(trunk.dtype, _HALF_TOLERANCE)
        except Exception:  # windows that only the masks know; a history within one is as before
            return False
        finally:
            self._window = window

    def _prune_last_layer(self, trunk: PreTrainedModel) -> None:
        """Skip the last layer's work on unread tokens, unless this architecture needs it."""
        self._pruning.attach(trunk, layer=int(trunk.config.num_hidden_layers) - 1)
        try:
            sound = self._probe(trunk, every=2) <= _TOLERANCE.get(trunk.dtype, _HALF_TOLERANCE)
        except Exception:  # a foreign architecture can fail in any way, and was fine without
            sound = False
        if not sound:
            self._pruning.remove()

    @torch.inference_mode()
    def _probe(self, trunk: PreTrainedModel, *, every: int = 1) -> float:
        """Distance of packed outputs from ordinary ones, relative to the largest.

        Args:
            every: reads the first of so many tokens.
        """
        length = min(_PROBE_TOKENS, self.context)
        # All different, so that outputs of a wrong place show.
        tokens = [(7 * i + 1) % int(trunk.config.vocab_size) for i in range(length)]
        alone = {"input_ids": torch.tensor([tokens], device=self._device)}
        trunk.set_attn_implementation(self._expected_of)
        try:
            expected = self._read(None, alone)[::every]
        finally:  # some failures are tolerated
            trunk.set_attn_implementation(PACKED_ATTENTION)
        entry = Entry()
        head = history_segment(entry, tokens[: length // 2 // every * every])
        entry.token_ids = head.token_ids
        tail = history_segment(entry, tokens)
        # The tail must see the head, which only the buffer still holds, and not its neighbour.
        neighbour = history_segment(Entry(), tokens[::-1])
        found = torch.cat([self.run([_read_every(every, head)]), self.run([neighbour, _read_every(every, tail)])])
        _require_every_layer(entry, trunk)
        scale = max(1.0, float(expected.float().abs().max()))
        return float((expected.float() - found.float()).abs().max()) / scale


def _parts(segment: PackedSegment, size: int) -> Iterator[PackedSegment]:
    if segment.bias is not None or len(segment.token_ids) <= size:
        if segment.token_ids:
            yield segment
        return
    for start in range(0, len(segment.token_ids), size):
        end = min(start + size, len(segment.token_ids))
        yield replace(
            segment,
            token_ids=segment.token_ids[start:end],
            positions=segment.positions[start:end],
            column=segment.column + start,
            seen=joined(segment.seen, range(segment.column, segment.column + start)),
            own=None,
            read=tuple(row - start for row in segment.read if start <= row < end),
        )


def logits_of(model: PreTrainedModel) -> Reader:
    """Reads a causal LM's next-token logits, (rows, vocabulary)."""

    def read(rows: Tensor | None, inputs: dict[str, Any]) -> Tensor:
        keep = 0 if rows is None else rows
        logits: Tensor = model(**inputs, use_cache=False, logits_to_keep=keep).logits[0]
        return logits

    return read


def hidden_states_of(trunk: PreTrainedModel) -> Reader:
    """Reads a trunk's last hidden states, (rows, D)."""

    def read(rows: Tensor | None, inputs: dict[str, Any]) -> Tensor:
        hidden_ND: Tensor = trunk(**inputs, use_cache=False).last_hidden_state[0]
        return hidden_ND if rows is None else hidden_ND[rows]

    return read


def history_segment(entry: Entry, token_ids: list[int], *, read_last: bool = False, owner: int = 0) -> PackedSegment:
    """The segment of a history's tokens that its entry does not hold yet."""
    known, length = len(entry.token_ids), len(token_ids)
    read = (length - known - 1,) if read_last else ()
    positions = list(range(known, length))
    seen = joined((), range(known))
    return PackedSegment(entry.buffer, token_ids[known:], positions, known, seen, read=read, owner=owner)


def _read_every(step: int, segment: PackedSegment) -> PackedSegment:
    return replace(segment, read=tuple(range(0, len(segment.token_ids), step)))


def _refuse_shifting_positions(config: PretrainedConfig) -> None:
    """Refuse rope types whose angles depend on the longest sequence: cached keys would be wrong."""
    if shifting := shifting_rope(config):
        raise CheckpointError(
            f"rope_type is {shifting!r}, whose angles change with the length, so keys "
            "cannot be kept between steps; serve this model through an OpenAI-compatible server"
        )


def _require_every_layer(entry: Entry, trunk: PreTrainedModel) -> None:
    """Refuse layers that do not use this attention: they would see other conversations."""
    found, layers = len(entry.buffer.keys), int(trunk.config.num_hidden_layers)
    if found != layers:
        raise NotImplementedError(f"{found} of its {layers} layers have attention that can be set")


def _unsupported(trunk: PreTrainedModel, reason: str) -> str:
    return (
        f"{type(trunk).__name__} does not run on packed tokens ({reason}); "
        "serve this model through an OpenAI-compatible server"
    )
