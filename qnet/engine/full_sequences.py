"""Runs a model on sequences that start with histories, for trunks that packed tokens do not suit.

There are four ways to run them. At load each is checked against sequences that run alone, and the
first that gives the same outputs is taken:

    one_row         a history's new tokens and its continuations in one row, see `branch_rows`; the
                    last layer works on what is read. The state behind the history (transformers'
                    own cache) is kept, and those behind its continuations until the next step; a
                    history that goes on from one, or branches off at a turn, costs its new tokens
    shared_history  a history once, then its continuations in padded batches behind copies of its
                    state, one for each row: as many rows as 1 GiB has room for copies, at least
                    one. The state is kept, too
    padded          whole sequences of similar length in padded batches
    alone           one sequence at a time

Padding is on the right, where causal layers never look: attention, convolutions, recurrences. So no
mask is given, which would cost attention its causal kernel.
"""

import inspect
import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Generic, Literal, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from qguide.qnet.engine.branch_rows import BranchRow
from qguide.qnet.engine.context_length import context_length, shifting_rope
from qguide.qnet.engine.kernels import LastLayerPruning, speed_up_linear_layers, upload
from qguide.qnet.engine.model_memory import in_float32
from qguide.qnet.engine.recurrences import adopt_recurrences
from qguide.qnet.engine.recurrent_states import Branches, RecurrentState, StateCache, behind, cache_of
from qguide.qnet.engine.tree_branches import batches_of_like_length
from qguide.qnet.engine.windows import chooses, choosing_few, window_of
from qguide.qnet.sliced_scorer import Slices, finish
from qguide.qnet.work import TokenUsage

Found = TypeVar("Found")

Digest = Callable[[Tensor, list[int]], Found]
"""Function of a continuation's tokens (A), and of logits (A + 1, …) at the history's last token and
its own; without a history, they are (A, …). Of a trunk's hidden states only the last may be read."""

Way = Literal["one_row", "shared_history", "padded", "alone"]

_TRIED: Final[tuple[Way, ...]] = ("one_row", "one_row", "shared_history", "padded")
"""The first with a last layer that works on what is read, which some architectures' does not."""
_PROBED_HISTORY: Final = 36
_PROBE_ROOM: Final[dict[Way, int]] = {"alone": 0, "one_row": 24, "shared_history": 24, "padded": 120}
"""Tokens of one forward pass of the self-check: two for a history, or three sequences at once."""
_TOLERANCE: Final = 1e-3
_COPIES_BYTES: Final = 2**30
"""Copies of a history's state at once, which a long history or a wide recurrence makes large."""
_MASK_ENTRIES: Final = 2**24  # of one row's mask, which attention takes as float32

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Continuations:
    """A history, and the token sequences that continue it, none of them empty.

    Attributes:
        turns: where turns of the history end, in order; a state is kept there where a pass ends.
        cache_salt: only requests with the same salt may find its states.
    """

    history: list[int]
    tails: list[list[int]]
    turns: Sequence[int] = ()
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class _Row:
    """One continuation: its request's index, its own, and its tokens."""

    owner: int
    number: int
    history: list[int]
    tail: list[int]

    def __len__(self) -> int:
        return len(self.history) + len(self.tail)


@dataclass(frozen=True, slots=True)
class _Passes:
    """Limits of the forward passes of one call, with what they spend and find.

    Attributes:
        room: tokens of one pass; 0 runs each sequence by itself.
        known: tokens of each request's history that had been computed before.
    """

    room: int
    spent: Counter[int]
    known: Counter[int]
    digest: Digest[Any]
    found: list[dict[int, Any]]

    def spend(self, tokens: dict[int, int]) -> dict[int, TokenUsage]:
        """Count a pass's tokens by request; what all of them have cost by its end."""
        self.spent.update(tokens)
        return {owner: TokenUsage(total, 0) for owner, total in self.spent.items()}

    def keep(self, row: _Row, outputs_AX: Tensor) -> None:
        """Digest the outputs of one continuation."""
        self.found[row.owner][row.number] = self.digest(outputs_AX, row.tail)


class FullSequenceModel(Generic[Found]):
    """A model that computes each request's whole sequences.

    Args:
        digest: applied to each continuation at once, so that its outputs are not kept.
        tokens_per_forward: maximum number of tokens of one forward pass, padding included; a
            sequence that cannot be cut is one pass, however long.

    Attributes:
        way: how it runs; see the module.
        reason: why not in a better way; empty for the best.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        digest: Digest[Found],
        *,
        tokens_per_forward: int,
        logits: bool = False,
        cache_bytes: int = 0,
    ) -> None:
        self.store = StateCache(cache_bytes)
        self._model = model.eval()
        self._digest = digest
        self._tokens_per_forward = tokens_per_forward
        self._logits = logits
        adopt_recurrences(model)
        speed_up_linear_layers(model)
        takes = inspect.signature(model.forward).parameters
        self._cuts_logits = logits and "logits_to_keep" in takes
        self._positions = "position_ids" in takes
        self._pruning = LastLayerPruning()
        self._follows_branches = False
        # The hooks live as long as the model, which may outlive this and serve another.
        weakref.finalize(self, self._pruning.remove)
        self.way, self.reason = self._find_way()
        self.store.clear()
        self.store.evictions = 0
        _log.info("%s runs on full sequences: %s %s", type(model).__name__, self.way, self.reason)

    @torch.inference_mode()
    def run(
        self, requests: Sequence[Continuations], spent: Counter[int], known: Counter[int]
    ) -> Slices[list[list[Found]]]:
        """Digests of each request's continuations, a pass a slice; tokens `spent` and `known` are added by request."""
        room = 0 if self.way == "alone" else self._tokens_per_forward
        passes = _Passes(room, spent, known, self._digest, [{} for _ in requests])
        return (yield from self._run(self.way, requests, passes))

    @torch.inference_mode()
    def read_ahead(self, history: tuple[str, list[int]], *, begin: Callable[[int], None]) -> Iterator[None]:
        """Compute a history that has no candidates yet, where its state can be kept."""
        request = Continuations(history[1], [], cache_salt=history[0])
        state = self.store.find(*history)
        for end in _ends(state, request, self._tokens_per_forward):
            begin(end - (state.length if state else 0))
            state, _ = self._read(request, end, state)
            yield

    def _run(self, way: Way, requests: Sequence[Continuations], passes: _Passes) -> Slices[list[list[Any]]]:
        rows = [
            [_Row(owner, number, request.history, tail) for number, tail in enumerate(request.tails)]
            for owner, request in enumerate(requests)
        ]
        if way in ("one_row", "shared_history"):
            run = self._one_row if way == "one_row" else self._behind_history
            for request, of_request in zip(requests, rows, strict=True):
                if request.history:
                    yield from run(request, of_request, passes)
                else:
                    yield from self._whole(of_request, passes)
        else:
            yield from self._whole(list(chain(*rows)), passes)
        return [[values[number] for number in sorted(values)] for values in passes.found]

    def _behind_history(self, request: Continuations, rows: Sequence[_Row], passes: _Passes) -> Slices[None]:
        """The continuations of one request, behind copies of the state that its history left."""
        owner = rows[0].owner
        state = self.store.find(request.cache_salt, request.history)
        passes.known[owner] += state.length if state else 0
        for end in _ends(state, request, passes.room):
            yield passes.spend({owner: end - (state.length if state else 0)})
            state, _ = self._read(request, end, state)
        assert state is not None
        most = max(1, _COPIES_BYTES // max(1, state.copied_bytes))
        for batch in batches_of_like_length(rows, _tail_length, passes.room, most=most):
            yield passes.spend({owner: sum(len(row.tail) for row in batch)})
            tails = [row.tail for row in batch]
            outputs_BAX = self._forward(tails, max(map(len, tails)), state)
            for row, outputs_AX in zip(batch, outputs_BAX, strict=True):
                own = outputs_AX[: len(row.tail)]
                passes.keep(row, torch.cat([state.last[0], own]))

    def _one_row(self, request: Continuations, rows: Sequence[_Row], passes: _Passes) -> Slices[None]:
        """The continuations of one request, in a row with the history's last new tokens."""
        owner, length = rows[0].owner, len(request.history)
        state = self.store.find(request.cache_salt, request.history)
        known = state.length if state else 0
        passes.known[owner] += known
        room = max(1, min(passes.room, _MASK_ENTRIES // (length + passes.room)))
        batches = list(batches_of_like_length(rows, _tail_length, room))
        ends = [(end, list[_Row]()) for end in _ends(state, request, passes.room)]
        if ends:
            stem = length - (ends[-2][0] if len(ends) > 1 else known)
            if stem + sum(map(_tail_length, batches[0])) <= room:
                ends[-1] = (length, batches.pop(0))
        for end, batch in [*ends, *((length, batch) for batch in batches)]:
            tokens = end - (state.length if state else 0) + sum(map(_tail_length, batch))
            yield passes.spend({owner: tokens})
            state, outputs = self._read(request, end, state, [row.tail for row in batch])
            for row, outputs_AX in zip(batch, outputs, strict=True):
                of_last = [state.last[0]] if self._logits else []
                passes.keep(row, torch.cat([*of_last, outputs_AX]))

    def _read(
        self, request: Continuations, end: int, before: RecurrentState | None, tails: Sequence[list[int]] = ()
    ) -> tuple[RecurrentState, Sequence[Tensor]]:
        """Compute a history up to one of its tokens, and keep the state behind it.

        Returns:
            The state, and the outputs (A, …) at continuations in the same row: those of a trunk
            at their last tokens alone.
        """
        known, history = before.length if before else 0, request.history[:end]
        device, options = self._model.device, dict[str, Any]()
        row = BranchRow(end - known, [len(tail) for tail in tails], known, device)
        read = row.read(ends=not self._logits)
        tokens = [*history[known:], *chain(*tails)]
        rows = upload(read, device, dtype=torch.long)
        if self._cuts_logits:
            options["logits_to_keep"] = rows
        if before is not None:
            options |= behind(before, self._model, 1, len(tokens))
        if row.forks:
            options["attention_mask"] = row.mask(device)
            if self._positions:
                options["position_ids"] = upload([row.positions], device)
        with self._pruning.to(read, tokens=len(tokens), device=device), row.active():
            output = self._model(input_ids=upload([tokens], device), use_cache=True, **options)
        outputs_TX: Tensor = (output.logits if self._logits else output.last_hidden_state)[0]
        outputs_RX = outputs_TX if self._cuts_logits else outputs_TX[rows]
        if row.stem:
            cache = cache_of(output)
            row.leave(cache)
            kept = row.forks and self._follows_branches
            branches = Branches(tails, row.spans, row.states, row.windows) if kept else None
            # Cloned, because a view would keep the outputs of all columns.
            before = RecurrentState.of(cache, outputs_RX[None, :1].clone(), end, before, branches)
            self.store.keep(request.cache_salt, history, before)
            outputs_RX = outputs_RX[1:]
        assert before is not None
        return before, outputs_RX.split([len(tail) if self._logits else 1 for tail in tails])

    def _whole(self, rows: Sequence[_Row], passes: _Passes) -> Slices[None]:
        """Whole sequences in padded batches of up to so many tokens."""
        for batch in batches_of_like_length(rows, len, passes.room):
            costs = Counter[int]()
            for row in batch:
                costs[row.owner] += len(row)
            yield passes.spend(costs)
            longest = max(map(len, batch))
            # Logits are the largest tensor: none before the last token of the shortest history.
            first = max(0, min(len(row.history) for row in batch) - 1)
            sequences = [row.history + row.tail for row in batch]
            outputs_BKX = self._forward(sequences, longest - first, None)
            for row, outputs_KX in zip(batch, outputs_BKX, strict=True):
                begin = max(0, len(row.history) - 1)
                passes.keep(row, outputs_KX[begin - first : len(row) - first])

    def _forward(self, rows: Sequence[list[int]], keep: int, before: RecurrentState | None) -> Tensor:
        """Outputs (B, K, …) at the last `keep` columns of a padded batch."""
        longest = max(map(len, rows))
        padded_BT = [row + [0] * (longest - len(row)) for row in rows]
        options: dict[str, Any] = {"use_cache": before is not None}
        if self._cuts_logits:
            options["logits_to_keep"] = keep
        if before is not None:
            options |= behind(before, self._model, len(rows), longest)
        output = self._model(input_ids=upload(padded_BT, self._model.device), **options)
        outputs_BTX: Tensor = output.logits if self._logits else output.last_hidden_state
        return outputs_BTX[:, -keep:]

    def _find_way(self) -> tuple[Way, str]:
        """The first way that gives what sequences alone give, and why not one before it."""
        if rope := shifting_rope(self._model.config):
            return "alone", f"rope_type is {rope!r}, whose angles change with the length"
        reasons: dict[Way, str] = {}
        layers = self._model.config.get_text_config().num_hidden_layers
        self._pruning.attach(self._model, layer=int(layers) - 1)
        for way in _TRIED:
            try:
                with in_float32(self._model), choosing_few(self._model):
                    error = self._probe(way)
            except Exception as failure:  # a foreign architecture can fail in any way
                reasons[way] = f"{way}: {type(failure).__name__}: {failure}"
            else:
                if error <= _TOLERANCE:
                    self._follows_branches = way == "one_row" and self._can_follow()
                    return way, "; ".join(reasons.values())
                reasons[way] = f"{way}: outputs differ by {error:.2g}"
            self._pruning.remove()
            self.store.clear()  # what a wrong way has left
        return "alone", "; ".join(reasons.values())

    def _can_follow(self) -> bool:
        """True if a history may go on from what a branch of the row before has left."""
        self._follows_branches = True
        self.store.clear()
        tokens, tails = self._probed()
        first = Continuations(tokens[: _PROBE_ROOM["one_row"] - sum(map(len, tails))], tails)
        then = Continuations([*first.history, *tails[3], *tokens[-2:]], tails)
        try:
            with in_float32(self._model), choosing_few(self._model):
                return self._error("one_row", [first, then], of=[then]) <= _TOLERANCE
        except Exception:  # a foreign architecture can fail in any way, and was fine without
            return False

    def _probed(self) -> tuple[list[int], list[list[int]]]:
        vocabulary = self._model.config.get_text_config().vocab_size
        tails = [[(5 * i + j + 2) % vocabulary for i in range(j)] for j in (4, 1, 3, 2)]
        length = min(_PROBED_HISTORY, context_length(self._model.config) - 4)
        return [(7 * i + 1) % vocabulary for i in range(length)], tails

    def _probe(self, way: Way) -> float:
        """Distance of this way's outputs from those of sequences alone."""
        if way == "one_row" and (window_of(self._model.config) or chooses(self._model)):
            raise NotImplementedError("the mask of its row knows neither windows nor chosen tokens")
        tokens, tails = self._probed()
        # A pass over one token takes a path of its own in many architectures.
        short = tokens[: _PROBE_ROOM["shared_history"] + 1]
        requests = [Continuations(tokens, tails), Continuations(short, tails[1:2])]
        return self._error(way, requests, of=requests)

    @torch.inference_mode()
    def _error(self, way: Way, requests: Sequence[Continuations], *, of: Sequence[Continuations]) -> float:
        """Distance of the last requests' outputs, relative to what their histories change in them."""
        without = [Continuations([], request.tails) for request in of]
        expected, blind = self._outputs("alone", of), self._outputs("alone", without)
        found = self._outputs(way, requests)[-len(expected) :]
        effect = float((expected - blind).norm())
        return float((expected - found).norm()) / max(effect, 1e-30)

    def _checked(self, outputs_AX: Tensor, tail: list[int]) -> Tensor:
        return outputs_AX[-len(tail) :] if self._logits else outputs_AX[-1:]

    def _outputs(self, way: Way, requests: Sequence[Continuations]) -> Tensor:
        """(N, X) outputs at what is read of all continuations, in short passes."""
        passes = _Passes(_PROBE_ROOM[way], Counter(), Counter(), self._checked, [{} for _ in requests])
        return torch.cat(list(chain(*finish(self._run(way, requests, passes))))).float()


def _tail_length(row: _Row) -> int:
    return len(row.tail)


def _ends(state: RecurrentState | None, request: Continuations, room: int) -> Iterator[int]:
    """Ends of the passes over a history: each at the last turn within its room, if there is one."""
    known, length = state.length if state else 0, len(request.history)
    while known < length:
        within = min(known + room, length)
        turns = [turn for turn in request.turns if known < turn <= within]
        known = within if within == length or not turns else turns[-1]
        yield known
