"""States that a model's layers are left in behind token sequences, kept for what goes on there.

Recurrent layers have a state of one size, behind one sequence, and no way back: one is kept for
each history that was read. Keys and values of attention layers are kept once for the histories of
a session, each of which sees its beginning of them.
"""

import copy
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, LinearAttentionCacheLayerMixin

from qguide.qnet.engine.kernels import upload
from qguide.qnet.engine.prefix_cache import RadixTree

_PARTS: Final = (Cache, CacheLayerMixin, LinearAttentionCacheLayerMixin)
_NAMES: Final = ("cache", "cache_params", "past_key_values")
"""Of a cache among a model's arguments and outputs; before transformers 5.24 only the latter two."""


@dataclass(frozen=True, slots=True, eq=False)
class Branches:
    """Memory of the branches of a row, one of which a session's next history goes on from.

    Attributes:
        columns: of each branch among the keys and values.
        states: of recurrences, each (branches, …), and `windows` of convolutions.
        attended: keys and values of the attention layers, (1, H, columns, D).
    """

    tokens: Sequence[list[int]]
    columns: list[range]
    states: list[Tensor]
    windows: list[Tensor]
    attended: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of states and windows."""
        return sum(t.nbytes for t in (*self.states, *self.windows))

    def taken(self, rest: list[int]) -> int | None:
        """The longest branch with which these tokens begin, if they are more than it."""
        begin = [n for n, ids in enumerate(self.tokens) if len(ids) < len(rest) and rest[: len(ids)] == ids]
        return max(begin, key=lambda number: len(self.tokens[number]), default=None)


@dataclass(slots=True, eq=False)
class _Attended:
    """Keys and values of one session's attention layers, which grow with its longest history.

    Attributes:
        tensors: keys and values, layer by layer, (1, H, length, D).
        states: how many states in the cache see them.
        counted: bytes by which the cache knows them.
        branches: read in the same row as the last of its tokens.
    """

    tensors: list[tuple[Tensor, Tensor]]
    length: int
    states: int = 0
    counted: int = 0
    branches: Branches | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that all keys and values hold, with those of branches that were read beside them."""
        of_branches = self.branches.nbytes if self.branches else 0
        return of_branches + sum(t.untyped_storage().nbytes() for both in self.tensors for t in both)


@dataclass(frozen=True, slots=True, eq=False)
class RecurrentState:
    """Memory of a model behind a history; nothing that uses it changes it.

    Attributes:
        last: (1, 1, …) outputs at the last one.
        nbytes: of its own: recurrent states, convolutions and windows.
    """

    length: int
    last: Tensor
    nbytes: int
    _own: Any
    _attended: _Attended

    @classmethod
    def of(
        cls, cache: Any, last: Tensor, length: int, before: "RecurrentState | None", branches: Branches | None = None
    ) -> "RecurrentState":
        """Take over a cache of transformers after a forward pass, which went on from `before`.

        Args:
            branches: that were read in the same row; their keys and values are added here.
        """
        layers = attention_layers(cache)
        if branches is not None:
            branches.attended.extend((one.keys, one.values) for one in layers)
        # Those of a row's branches lie behind the history's.
        tensors = [(one.keys[..., :length, :], one.values[..., :length, :]) for one in layers]
        for layer in layers:
            layer.keys, layer.values = (t.new_empty(0) for t in (layer.keys, layer.values))
        # The session's longest history went on: its tensors begin with the old ones, so that all of its states share
        # the new. Otherwise this history branched off before, and has tensors of its own.
        if before is not None and before._attended.length == before.length:
            attended = before._attended
            attended.tensors, attended.length = tensors, length
        else:
            attended = _Attended(tensors, length)
        own = sum(tensor.nbytes for tensor in _tensors(cache))
        attended.branches = branches
        return cls(length, last, last.nbytes + own, cache, attended)

    def followed(self, token_ids: list[int]) -> "RecurrentState":
        """The state behind the branch that a history goes on from; this one if there is none."""
        attended, branches = self._attended, self._attended.branches
        if branches is None or attended.length != self.length:
            return self
        if (number := branches.taken(token_ids[self.length :])) is None:
            return self
        length = self.length + len(branches.tokens[number])
        columns = upload([*range(self.length), *branches.columns[number]], self.last.device)
        attended.tensors = [(k.index_select(2, columns), v.index_select(2, columns)) for k, v in branches.attended]
        attended.length, attended.branches = length, None
        cache = _in_rows(self._own, 1)
        layers = [x for x in cache.layers if isinstance(x, LinearAttentionCacheLayerMixin)]
        for kind, found in (("conv_states", branches.windows), ("recurrent_states", branches.states)):
            rows = iter(found)
            for layer in layers:
                states = getattr(layer, kind)
                states.update(
                    {name: next(rows)[number : number + 1].clone() for name, old in states.items() if old is not None}
                )
        own = sum(tensor.nbytes for tensor in _tensors(cache))
        return RecurrentState(length, self.last, self.last.nbytes + own, cache, attended)

    @property
    def copied_bytes(self) -> int:
        """Bytes of one row of a copy."""
        seen = self._attended.nbytes * self.length // max(1, self._attended.length)
        return self.nbytes + seen

    def copies(self, rows: int) -> Any:
        """A cache of transformers in so many equal rows, for one forward pass."""
        # Not `deepcopy` and `reorder_cache`, which take longer than a layer of a small model.
        cache = _in_rows(self._own, rows)
        for layer, both in zip(attention_layers(cache), self._attended.tensors, strict=True):
            # Views: a forward pass appends to these by making new tensors.
            layer.keys, layer.values = (t[..., : self.length, :].expand(rows, -1, -1, -1) for t in both)
        return cache


def behind(state: RecurrentState, model: PreTrainedModel, rows: int, tokens: int) -> dict[str, Any]:
    """Arguments of a forward pass that goes on from copies of a state: so many rows and columns."""
    takes = inspect.signature(model.forward).parameters
    options = {name_of_cache(model): state.copies(rows)}
    if "position_ids" in takes:  # not all of them count on from a state
        positions_1T = [list(range(state.length, state.length + tokens))]
        options["position_ids"] = upload(positions_1T, model.device)
    return options


def name_of_cache(model: PreTrainedModel) -> str:
    """The argument of a model's forward pass that is a cache of transformers."""
    takes = inspect.signature(model.forward).parameters
    return next((name for name in _NAMES if name in takes), _NAMES[-1])  # one may take them all by `**kwargs`


def cache_of(output: Any) -> Any:
    """The cache of transformers in a forward pass's output."""
    found = (getattr(output, name, None) for name in _NAMES)
    return next((cache for cache in found if cache is not None), None)


@dataclass(slots=True)
class StateCache:
    """Least-recently-used states of one model. Not thread-safe: the device thread owns it.

    Attributes:
        nbytes: of what is kept; keys and values that several states see count once.
    """

    cache_bytes: int
    nbytes: int = 0
    evictions: int = 0
    _states: OrderedDict[int, tuple[RecurrentState, str, list[int]]] = field(default_factory=OrderedDict)
    # A tree for each salt, as in `prefix_cache`: what others' prompts begin with must not show.
    _trees: defaultdict[str, RadixTree] = field(default_factory=lambda: defaultdict(RadixTree))
    _next_key: int = 0

    def find(self, salt: str, token_ids: list[int]) -> RecurrentState | None:
        """The state behind the longest kept history that these tokens begin with.

        It is that behind a branch of it, where they go on with one.
        """
        if salt not in self._trees:
            return None
        key = self._trees[salt].find_whole(token_ids)
        if key is None:
            return None
        self._states.move_to_end(key)
        return self._states[key][0].followed(token_ids)

    def keep(self, salt: str, token_ids: list[int], state: RecurrentState) -> None:
        """Keep the state behind a history, as the most recently used."""
        attended = state._attended
        if state.nbytes + attended.nbytes > self.cache_bytes:
            return  # it would drive out all others, and then itself
        self._next_key += 1
        self._states[self._next_key] = (state, salt, token_ids)
        self._trees[salt].add(token_ids, self._next_key)
        attended.states += 1
        self.nbytes += state.nbytes + attended.nbytes - attended.counted
        attended.counted = attended.nbytes
        while self._states and self.nbytes > self.cache_bytes:
            self._forget(next(iter(self._states)))
            self.evictions += 1

    def clear(self) -> None:
        """Forget everything."""
        for key in list(self._states):
            self._forget(key)

    def _forget(self, key: int) -> None:
        state, salt, token_ids = self._states.pop(key)
        self._trees[salt].remove(token_ids, key)
        if not self._trees[salt]:
            del self._trees[salt]
        self.nbytes -= state.nbytes
        state._attended.states -= 1
        if not state._attended.states:
            self.nbytes -= state._attended.counted
            state._attended.counted = 0


def attention_layers(cache: Any) -> list[Any]:
    """The layers whose keys and values grow with every token."""
    grow = [one for one in cache.layers if isinstance(one, DynamicLayer) and not one.is_sliding]
    return [layer for layer in grow if layer.is_initialized]


def _in_rows(value: Any, rows: int) -> Any:
    """A copy of a cache, or of a part of one, whose tensors for one sequence have so many rows."""
    if isinstance(value, Tensor):
        return value.expand(rows, *value.shape[1:]).clone() if value.ndim > 1 else value
    if isinstance(value, list):
        return [_in_rows(part, rows) for part in value]
    if isinstance(value, dict):
        return {name: _in_rows(part, rows) for name, part in value.items()}
    if not isinstance(value, _PARTS):
        return value
    copied = copy.copy(value)
    vars(copied).update(_in_rows(vars(value), rows))
    return copied


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, _PARTS):
        yield from _tensors(vars(value))
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)
