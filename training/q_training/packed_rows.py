"""Packed trees that are packed when they are asked for, and the trees of files that they come from.

A training needs the length of every packed tree to plan its steps, but the trees themselves only
one after the other. So each is packed once for its length, and again when its turn comes; those
that were used last are held. Processes pack the trees of their own part alone. Lengths that an
earlier start of the training has found are taken from it (`kept_lengths`).
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from random import Random
from typing import Final, Generic, NamedTuple, TypeVar, overload

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from qguide.qnet.errors import RecordError
from qguide.qnet.records import TreeRow
from qguide.training.data.augmentation import Augmenter
from qguide.training.data.row_files import Place, RowStore
from qguide.training.optimization.packed_trees import PackedTree

HELD_TOKENS: Final = 4_000_000
"""Tokens of the packed trees that are held, at about 50 bytes each; a tree counts for some more."""

_TREE_ITSELF: Final = 50
"""Tokens with the memory of a tree without any: its lists and sets have 2,500 bytes."""

_DRAWS: Final = 256
"""Trees between two states of the random generator that are kept; a state has 2,500 bytes."""

_STATE: Final = 625
"""Numbers of a state."""

Item = TypeVar("Item")


class StoredItems(Sequence[Item], Generic[Item]):
    """Rows of a store, each read and converted when it is asked for."""

    def __init__(self, store: RowStore[TreeRow], convert: Callable[[TreeRow], Item]) -> None:
        self._store = store
        self._convert = convert
        self._places = array("Q")

    def append(self, place: Place) -> None:
        """Add the row at a place."""
        self._places.extend((place.file, place.start, place.length))

    @property
    def identity(self) -> bytes:
        """The places of these rows, and a hash of all rows of their store."""
        return self._places.tobytes() + self._store.digest

    def __len__(self) -> int:
        return len(self._places) // 3

    @overload
    def __getitem__(self, number: int) -> Item: ...
    @overload
    def __getitem__(self, number: slice) -> list[Item]: ...
    def __getitem__(self, number: int | slice) -> Item | list[Item]:
        """The item of a number, or those of several."""
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        first = 3 * range(len(self))[number]
        return self._convert(self._store.read(Place(*self._places[first : first + 3])))


class PackedEpoch(NamedTuple):
    """Figures of an epoch's packed trees, by which its steps are planned and each tree is packed again.

    Attributes:
        lengths: tokens of each.
        items: the item that each comes from.
        parts: its place among that item's.
        label_range: lowest and highest label.
        states: (K, 625) the generator of names, before every 256th item.
        after: (625,) that generator behind the last item.
    """

    lengths: NDArray[np.int64]
    items: NDArray[np.int64]
    parts: NDArray[np.int64]
    label_range: NDArray[np.float64]
    states: NDArray[np.uint32]
    after: NDArray[np.uint32]


class PackedRows(Sequence[PackedTree]):
    """The packed trees of some items; an item may have several, or none.

    Attributes:
        lengths: tokens of each packed tree.
        label_range: lowest and highest label.
        epochs: what was added by `add_epoch`.
    """

    def __init__(self) -> None:
        self.lengths = array("q")
        self.label_range = (float("inf"), float("-inf"))
        self.epochs: list[PackedEpoch] = []
        self._items = array("q")
        self._parts = array("q")
        self._firsts = [0]
        self._packers: list[Callable[[int], list[PackedTree]]] = []
        self._held: LRUCache[int, PackedTree] = LRUCache(HELD_TOKENS, getsizeof=_size)

    def extend(self, count: int, pack: Callable[[int], list[PackedTree]]) -> Sequence[int]:
        """Add the trees of items 0 to `count` - 1; returns the length of each tree."""
        first, first_item = len(self), self._firsts[-1]
        self._packers.append(pack)
        self._firsts.append(first_item + count)
        for item in range(count):
            for part, tree in enumerate(pack(item)):
                self._items.append(first_item + item)
                self._parts.append(part)
                for label in (t for t, w in zip(tree.target, tree.weight, strict=True) if w):
                    self._widen(label, label)
                self.lengths.append(len(tree))
                self._hold(len(self) - 1, tree)
        return self.lengths[first:]

    def add_epoch(self, count: int, pack: Callable[[int], list[PackedTree]], renaming: "Renaming") -> Sequence[int]:
        """Add the trees of an epoch, which the generator of `renaming` names anew; returns the length of each."""
        first, before, self.label_range = len(self), self.label_range, (float("inf"), float("-inf"))
        lengths = self.extend(count, pack)
        items, parts = (np.array(column[first:], np.int64) for column in (self._items, self._parts))
        columns = np.array(lengths, np.int64), items - self._firsts[-2], parts, np.array(self.label_range)
        self.epochs.append(PackedEpoch(*columns, *renaming.states))
        self._widen(*before)
        return lengths

    def restore_epoch(
        self, found: PackedEpoch, count: int, pack: Callable[[int], list[PackedTree]], renaming: "Renaming"
    ) -> Sequence[int]:
        """The same, of which another start has found the lengths: nothing is packed."""
        first, first_item = len(self), self._firsts[-1]
        self._packers.append(pack)
        self._firsts.append(first_item + count)
        for column, values in ((self.lengths, found.lengths), (self._parts, found.parts)):
            column.frombytes(values.tobytes())
        self._items.frombytes((found.items + first_item).tobytes())
        self._widen(*found.label_range.tolist())
        renaming.restore(found.states, found.after)
        self.epochs.append(found)
        return self.lengths[first:]

    def _widen(self, low: float, high: float) -> None:
        self.label_range = min(low, self.label_range[0]), max(high, self.label_range[1])

    def _hold(self, number: int, tree: PackedTree) -> None:
        if _size(tree) <= self._held.maxsize:
            self._held[number] = tree

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, number: int) -> PackedTree: ...
    @overload
    def __getitem__(self, number: slice) -> list[PackedTree]: ...
    def __getitem__(self, number: int | slice) -> PackedTree | list[PackedTree]:
        """The tree of a number, packed if it is not held, or those of several."""
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        tree = self._held.get(number)
        if tree is None:
            epoch = bisect_right(self._firsts, self._items[number]) - 1
            packed = self._packers[epoch](self._items[number] - self._firsts[epoch])
            tree = next(islice(packed, self._parts[number], None), None)
            if tree is None or len(tree) != self.lengths[number]:
                raise RecordError(
                    f"the rows are packed otherwise than when the training began: tree {number} had "
                    f"{self.lengths[number]:,} tokens; train to another output folder"
                )
            self._hold(number, tree)
        return tree


def _size(tree: PackedTree) -> int:
    return _TREE_ITSELF + len(tree)


class Renaming:
    """The generator that names each tree of an epoch anew, also when it is packed again.

    The first time, trees are asked for in their order, and the epoch's own generator is used, which
    goes on where they end.
    """

    def __init__(self, augment: Augmenter, rng: Random) -> None:
        self._augment = augment
        self._rng = rng
        self._states: list[array[int]] = []
        self._drawn = 0

    def of_tree(self, number: int) -> Random:
        """The generator as it was before the names of a tree were drawn."""
        if number == self._drawn:
            if number % _DRAWS == 0:
                self._states.append(array("I", self._rng.getstate()[1]))
            self._drawn += 1
            return self._rng
        rng = Random()
        _set_state(rng, self._states[number // _DRAWS])
        for _ in range(number % _DRAWS):
            self._augment((), rng)  # draws alike, whatever it renames
        return rng

    @property
    def states(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """The generator's states so far, (K, 625), and its present one, (625,)."""
        states = np.array(self._states, np.uint32).reshape(-1, _STATE)
        return states, np.array(self._rng.getstate()[1], np.uint32)

    def restore(self, states: NDArray[np.uint32], after: NDArray[np.uint32]) -> None:
        """Go on where another start had drawn all names."""
        self._states = [array("I", state.tolist()) for state in states]
        self._drawn = -1  # no tree is the next
        _set_state(self._rng, after.tolist())


def _set_state(rng: Random, state: Iterable[int]) -> None:
    rng.setstate((Random.VERSION, tuple(state), None))
