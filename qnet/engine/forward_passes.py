"""Packed segments in forward passes of a bounded size.

A long history is cut, so that one pass needs little memory and others may take their turn between
two: work that takes many passes is a generator that shows each pass before it runs.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from qguide.qnet.engine.attention import PackedSegment, joined
from qguide.qnet.types import Slices
from qguide.qnet.usage import TokenUsage

Result = TypeVar("Result")

Passes = Generator[list[PackedSegment], None, Result]
"""Forward passes, each shown before it runs, and what came of all."""


def pack(
    segments: Iterable[PackedSegment], tokens_per_forward: int
) -> Iterator[list[PackedSegment]]:
    """Batches of segments in order; a long one is cut where its tokens see each other causally."""
    batch: list[PackedSegment] = []
    room = tokens_per_forward
    for segment in segments:
        for part in _parts(segment, tokens_per_forward):
            if batch and len(part.token_ids) > room:
                yield batch
                batch, room = [], tokens_per_forward
            batch.append(part)
            room -= len(part.token_ids)
    if batch:
        yield batch


def metered(passes: Passes[Result], spent: Counter[int]) -> Slices[Result]:
    """The same work as slices, with the tokens that each owner's segments cost added to `spent`."""
    try:
        batch = next(passes)
        while True:
            for segment in batch:
                spent[segment.owner] += len(segment.token_ids)
            yield {owner: TokenUsage(tokens, 0) for owner, tokens in spent.items()}
            batch = next(passes)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        passes.close()


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
