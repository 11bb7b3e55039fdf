"""Packed trees on trunks with recurrent layers.

Such a layer reads tokens in their order, whatever the mask, so a tree cannot be one row. There are
two ways to read it. Both give each distinct token the output that it has in the packed row of an
attention trunk, and so the same losses and gradients:

    branches    each stretch between two branching points once, behind a copy of the state that the
                tokens before it left; gradients flow back through the copies
    paths       each path from the root to a leaf in padded batches, each distinct token read from
                one of them: what is shared is computed once for each path

Paths are read where an architecture's own code cannot go on from a state with gradients, which is
tried once for each model, under gradient checkpointing, which takes no state, and where processes
shard the weights. Padding is on the right, where causal layers never look.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from qguide.qnet.engine.kernels import upload
from qguide.qnet.engine.model_memory import in_float32
from qguide.qnet.engine.recurrences import adopt_recurrences
from qguide.qnet.engine.recurrent_states import RecurrentState, behind, cache_of
from qguide.qnet.engine.token_trie import TokenTrie
from qguide.qnet.engine.windows import choosing_few

Row = TypeVar("Row")

RunRows = Callable[..., tuple[Tensor, Any]]
"""One forward pass over rows of token ids (B, T), padded with zeros, with options for the model's forward: outputs
(N, …) at some of the B * T tokens, and the model's own output."""

_LEAST_TOKENS = 2048
_LEAST_COLUMNS: Final = 2  # a single token goes on from a state by code of its own, which may overwrite the state
_TOLERANCE: Final = 1e-3

_reads_branches: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()
_read_alike: WeakSet[PreTrainedModel] = WeakSet()

_log = logging.getLogger(__name__)


def has_recurrent_layers(model: PreTrainedModel) -> bool:
    """True if an architecture declares layers that carry a state from token to token."""
    if model._is_stateful:
        return True
    layers: list[Any] = DynamicCache(config=model.config).layers
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)


def reads_branches(model: PreTrainedModel) -> bool:
    """True if a tree that is read by branches has the outputs and gradients of its paths."""
    if model not in _reads_branches:
        adopt_recurrences(model)
        reason = _why_not(model)
        way = f"paths: {reason}" if reason else "branches"
        _log.info("%s trains on %s", type(model).__name__, way)
        _reads_branches[model] = not reason
    return _reads_branches[model]


def read_alike(model: PreTrainedModel) -> None:
    """Read a model's trees by paths from now on, each pass once: processes that share its weights do the same then."""
    _read_alike.add(model)


def outputs_of_tree(model: PreTrainedModel, run: RunRows, tree: TokenTrie, wanted: Sequence[int]) -> Tensor:
    """(N, …) outputs at the distinct tokens of a tree that have the wanted indices.

    No pass over several rows has more tokens than the tree (or 2,048, if that is more), padding included. With gradient
    checkpointing, each of several passes is computed again in the backward pass.
    """
    branches = len(set(tree.before)) < len(tree)
    if branches and model not in _read_alike and not _checkpoints(model) and reads_branches(model):
        return _by_branches(model, run, tree, wanted)
    return _by_paths(model, run, tree, wanted)


def _by_branches(model: PreTrainedModel, run: RunRows, tree: TokenTrie, wanted: Sequence[int]) -> Tensor:
    passes = _Passes(model, run, tree, set(wanted))
    after = _tokens_after(tree, passes.wanted)
    pending: list[tuple[RecurrentState | None, list[list[int]]]] = [(None, _stretches(-1, after))]
    while pending:
        # Depth first, so that few states wait at once for what goes on from them.
        state, stretches = pending.pop()
        leaves = [stretch for stretch in stretches if not after[stretch[-1]]]
        for batch in batches_of_like_length(leaves, len, max(len(tree), _LEAST_TOKENS)):
            passes.read(batch, state)
        for stretch in stretches:
            onward = _stretches(stretch[-1], after)
            # Never alone: a single token is read with each of its continuations.
            if onward and state and len(stretch) < _LEAST_COLUMNS:
                pending.append((state, [stretch + one for one in onward]))
            elif onward:
                # Alone, because what pads a row would change the state that it leaves.
                cache = passes.read([stretch], state, use_cache=True)
                length = tree.depths[stretch[-1]] + 1
                left = RecurrentState.of(cache, torch.empty(0), length, state)
                pending.append((left, onward))
    return passes.outputs(wanted)


def _by_paths(model: PreTrainedModel, run: RunRows, tree: TokenTrie, wanted: Sequence[int]) -> Tensor:
    passes = _Passes(model, run, tree, set(wanted))
    room = max(len(tree), _LEAST_TOKENS)
    batches = list(batches_of_like_length(_paths(tree, wanted), len, room))
    again = torch.is_grad_enabled() and _checkpoints(model) and len(batches) > 1 and model not in _read_alike
    for batch in batches:
        passes.read(batch, None, again=again)
    return passes.outputs(wanted)


@dataclass(slots=True)
class _Passes:
    """Forward passes over parts of a tree, and what came out at each wanted token.

    Attributes:
        wanted: the tokens whose outputs are read, each in the first pass that computes it.
    """

    model: PreTrainedModel
    run: RunRows
    tree: TokenTrie
    wanted: set[int]
    _found: list[Tensor] = field(default_factory=list)
    _row_of: dict[int, int] = field(default_factory=dict)

    def read(
        self,
        rows: Sequence[Sequence[int]],
        state: RecurrentState | None,
        *,
        use_cache: bool = False,
        again: bool = False,
    ) -> Any:
        """Run rows of a tree's tokens in one pass; returns the cache that it leaves, if it has one.

        Args:
            state: that of the tokens before all rows.
            again: compute the pass a second time in the backward pass, instead of keeping it.
        """
        # Behind a state; without one, a single token takes the same path as many.
        longest = max(max(map(len, rows)), _LEAST_COLUMNS if state else 1)
        ids = [[self.tree.token_ids[i] for i in row] + [0] * (longest - len(row)) for row in rows]
        read = []
        for number, row in enumerate(rows):
            for column, token in enumerate(row):
                if token in self.wanted and token not in self._row_of:
                    self._row_of[token] = len(self._row_of)
                    read.append(number * longest + column)
        inputs = upload(ids, self.model.device), upload(read, self.model.device, dtype=torch.long)
        if again:
            self._found.append(checkpoint(lambda *given: self.run(*given)[0], *inputs, use_reentrant=False))
            return None
        options: dict[str, Any] = {"use_cache": use_cache or state is not None}
        if state is not None:
            options |= behind(state, self.model, len(rows), longest)
            for value in options.values():
                _assign_states(value)
        found, output = self.run(*inputs, **options)
        self._found.append(found)
        return cache_of(output)

    def outputs(self, wanted: Sequence[int]) -> Tensor:
        """(N, …) what was read, in this order of the tokens."""
        rows = [self._row_of[token] for token in wanted]
        return torch.cat(self._found)[upload(rows, self.model.device)]


def _assign_states(cache: Any) -> None:
    """Let recurrent layers put new states in the place of old ones, which gradients still need."""

    def assign(states: dict[int, Tensor | None], new: Tensor, state_idx: int = 0, **_: Any) -> Tensor:
        states[state_idx] = new
        return new

    for layer in getattr(cache, "layers", ()):
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            layer.update_recurrent_state = partial(assign, layer.recurrent_states)  # type: ignore[method-assign]


def _checkpoints(model: PreTrainedModel) -> bool:
    # Renamed in transformers 5.20; the old name warns.
    found = getattr(model, "is_activation_checkpointing", None)
    return bool(model.is_gradient_checkpointing if found is None else found)


def _tokens_after(tree: TokenTrie, wanted: set[int]) -> defaultdict[int, list[int]]:
    """The tokens after each (after -1: the first) that are wanted or lead to wanted ones."""
    needed, after = set(wanted), defaultdict[int, list[int]](list)
    for token in reversed(range(len(tree))):
        if token in needed:
            needed.add(tree.before[token])
            after[tree.before[token]].append(token)
    return after


def _stretches(token: int, after: defaultdict[int, list[int]]) -> list[list[int]]:
    """Continuations after a token: runs of tokens up to the next branching point or a leaf."""
    stretches = [[first] for first in after[token]]
    for stretch in stretches:
        while len(after[stretch[-1]]) == 1:
            stretch += after[stretch[-1]]
    return stretches


def _paths(tree: TokenTrie, wanted: Sequence[int]) -> Iterator[list[int]]:
    """Paths on which each wanted token lies, up to the last that no path before had."""
    missing = set(wanted)
    for leaf in sorted(set(range(len(tree))) - set(tree.before)):
        path = tree.path_to(leaf)
        own = [column for column, token in enumerate(path) if token in missing]
        if own:
            missing.difference_update(path)
            yield path[: own[-1] + 1]


def _why_not(model: PreTrainedModel) -> str:
    """Reason for which a tree cannot be read by branches; empty if it can."""
    training = model.training
    try:
        with in_float32(model), choosing_few(model):
            error = _probe(model.eval())
    except Exception as failure:  # a foreign architecture can fail in any way
        return f"{type(failure).__name__}: {failure}"
    finally:
        model.train(training)
    return "" if error <= _TOLERANCE else f"outputs or gradients differ by {error:.2g}"


@torch.enable_grad()
def _probe(model: PreTrainedModel) -> float:
    """Distance of branches from paths, relative to what a history changes and to the gradients."""
    vocabulary = model.config.get_text_config().vocab_size
    # A pass over one token takes a path of its own in many architectures.
    tails = [[(5 * i + j + 2) % vocabulary for i in range(j)] for j in (4, 1, 3)]
    stem = [(7 * i + 1) % vocabulary for i in range(6)]
    tree, without = TokenTrie(), TokenTrie()
    leaves, blind = [], []
    for tail in tails:
        for between in ([], tails[0][:1] * 2):
            leaves.append(tree.add([*stem, *between, *tail])[-1])
            blind.append(without.add([*between, *tail])[-1])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad][:8]
    found, gradients = [], []
    for read in (_by_branches, _by_paths):
        outputs = read(model, partial(_run, model), tree, leaves)
        found.append(outputs.detach())
        if trained:
            some = torch.autograd.grad(outputs.sum(), trained, allow_unused=True)
            gradients.append(torch.cat([one.flatten() for one in some if one is not None]))
    outputs, expected = found
    effect = expected - _by_paths(model, partial(_run, model), without, blind).detach()
    distance = (outputs - expected).norm() / effect.norm().clamp(min=1e-30)
    if gradients:
        of_branches, of_paths = gradients
        apart = (of_branches - of_paths).norm() / of_paths.norm().clamp(min=1e-30)
        distance = torch.maximum(distance, apart)
    return float(distance)


def _run(model: PreTrainedModel, ids_BT: Tensor, read_N: Tensor, **options: Any) -> tuple[Tensor, Any]:
    output = model(input_ids=ids_BT, **options)
    return output[0].flatten(0, 1)[read_N], output


def batches_of_like_length(
    rows: Iterable[Row], length: Callable[[Row], int], room: int, *, most: int | None = None
) -> Iterator[list[Row]]:
    """Rows of similar length together: one or more, at most `most`, and up to `room` tokens with padding."""
    batch: list[Row] = []
    for row in sorted(rows, key=length):
        if batch and (len(batch) == most or length(row) * (len(batch) + 1) > room):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
