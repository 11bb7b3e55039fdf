"""Layout of conversations that lie side by side while they are drawn after on a CPU.

Copies are made where they save time, and within a limit of memory: beginnings first, those of the
most conversations before others, then the shortest conversations, whose calls are dearest.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from qguide.qnet.engine.kv_buffer import KVBuffer
from qguide.qnet.engine.stacks import MULTIPLE, STACK_ROOM, Beginnings, Stack
from qguide.qnet.engine.token_trie import common_prefix

_FEWEST_STACKED: Final = 2
_MOST_STACKED: Final = 32  # of more, lengths differ so much that padding takes more time than calls do
_MOST_PADDED: Final = 1.25  # a conversation of a stack has at most so many times the columns of the shortest
_MOST_STACKED_BYTES: Final = 2**22
"""Keys and values of a layer, in a conversation that is worth copying: of more, reading them is
what takes time."""
_FEWEST_SHARED: Final = 128  # the shortest beginning that is read apart: of less, calls take more time than reading
_LEAST_OF_SHARED: Final = 0.75  # a conversation joins those with a longer beginning if it has at least so much of it


@dataclass(slots=True)
class _Family:
    """Conversations, by their indices, and how many columns they all begin with; 0 where they are read whole."""

    members: list[int]
    shared: int = 0


@dataclass(frozen=True, slots=True)
class StackLayout:
    """Copies to make of conversations.

    Attributes:
        order: in which the conversations have to be packed.
        nbytes: of the copies.
    """

    order: list[int]
    nbytes: int
    _beginnings: list[list[tuple[list[KVBuffer], int]]]
    _stacks: list[tuple[list[KVBuffer], list[range]]]

    def build(self) -> list[Stack | Beginnings]:
        """Make the copies."""
        return [*map(Beginnings, self._beginnings), *(Stack(*stacked) for stacked in self._stacks)]


def stack_alike(buffers: Sequence[KVBuffer], histories: Sequence[tuple[str, list[int]]], *, room: int) -> StackLayout:
    """Lay out conversations with about the same number of columns of their own, where that saves time.

    Args:
        histories: of each buffer, the salt and the tokens that it holds.
        room: most bytes of the copies.
    """
    column = sum(tensor[:, :1].nbytes for tensor in (*buffers[0].keys, *buffers[0].values))
    families = _families(histories)
    left = room // column
    for family in sorted(families, key=lambda family: -len(family.members)):
        # It may lie beside longer ones.
        if (padded := _rounded(int(_MOST_PADDED * family.shared))) > left:
            family.shared, padded = 0, 0
        left -= padded
    own = {i: range(family.shared, len(histories[i][1])) for family in families for i in family.members}
    order = sorted(own, key=lambda i: len(own[i]))
    stacks = []
    for alike in _alike(buffers, {i: len(own[i]) for i in order}):
        padded = len(alike) * (len(own[alike[-1]]) + STACK_ROOM)
        if padded <= left:
            stacks.append(([buffers[i] for i in alike], [own[i] for i in alike]))
            left -= padded
    found = _beginnings(families, {id(buffer) for stacked, _ in stacks for buffer in stacked}, buffers)
    columns = sum(len(group) * _rounded(group[-1][1]) for group in found)
    columns += sum(len(own) * (len(own[-1]) + STACK_ROOM) for _, own in stacks)
    return StackLayout(order, columns * column, found, stacks)


def _rounded(columns: int) -> int:
    return -(-columns // MULTIPLE) * MULTIPLE


def _families(histories: Sequence[tuple[str, list[int]]]) -> list[_Family]:
    """Histories that begin alike for long; the others are alone."""
    in_order = sorted(range(len(histories)), key=histories.__getitem__)
    families = [_Family(in_order[:1])]
    # Sorted, because then a history has its longest common beginning with a neighbour.
    for one, other in pairwise(in_order):
        (salt, mine), (other_salt, theirs) = histories[one], histories[other]
        common = common_prefix(mine, theirs) if salt == other_salt else 0
        last = families[-1]
        if common >= max(_FEWEST_SHARED, _LEAST_OF_SHARED * last.shared):
            last.members.append(other)
            last.shared = min(common, last.shared or common)
        else:
            families.append(_Family([other]))
    return families


def _alike(buffers: Sequence[KVBuffer], counts: dict[int, int]) -> list[list[int]]:
    """Conversations that are worth a stack, by their indices.

    Args:
        counts: columns of each that the stack would hold, in ascending order.
    """
    stacks: list[list[int]] = [[]]
    for i, count in counts.items():
        if len(stacks[-1]) == _MOST_STACKED or (
            stacks[-1] and count > _MOST_PADDED * counts[stacks[-1][0]] + STACK_ROOM
        ):
            stacks.append([])
        keys, values = buffers[i].keys[0], buffers[i].values[0]
        if 2 * count * keys[:, :1].nbytes <= _MOST_STACKED_BYTES and keys.shape == values.shape:
            stacks[-1].append(i)
    return [alike for alike in stacks if len(alike) >= _FEWEST_STACKED]


def _beginnings(
    families: Sequence[_Family], stacked: Collection[int], buffers: Sequence[KVBuffer]
) -> list[list[tuple[list[KVBuffer], int]]]:
    """Beginnings of families of stacked conversations, by their ids; those of about one length side by side."""
    found: list[list[tuple[list[KVBuffer], int]]] = [[]]
    for family in sorted(families, key=lambda family: family.shared):
        members = [buffers[i] for i in family.members if id(buffers[i]) in stacked]
        if not members or not family.shared:
            continue
        if found[-1] and family.shared > _MOST_PADDED * found[-1][0][1]:
            found.append([])
        found[-1].append((members, family.shared))
    return [alike for alike in found if alike]
