"""Draws many continuations of many histories in lockstep.

Each history is computed once and shared by its draws, and so is what several of them say alike; a draw that ended
leaves the batch. Every draw has random numbers of its own, so what it says does not depend on who shares the batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qguide.qnet.engine.kernels import upload
from qguide.qnet.engine.kv_buffer import PackedSegment, joined
from qguide.qnet.engine.packed_model import PackedModel, Passes, history_segment
from qguide.qnet.engine.prefix_cache import Branch, Entry


@dataclass(slots=True)
class Draw:
    """One continuation, as far as it has come.

    Attributes:
        temperature: 0 takes the likeliest token.
        uniforms: a random number in [0, 1) for each token it may have.
        token_ids: what was drawn, the stop token included.
        logprob: sum of the tokens' log-probabilities at temperature 1.
        columns: where the keys and values of its tokens lie.
    """

    temperature: float
    uniforms: list[float]
    token_ids: list[int] = field(default_factory=list)
    logprob: float = 0.0
    stopped: bool = False
    columns: list[int] = field(default_factory=list)
    given_up: bool = False

    @property
    def done(self) -> bool:
        """Stopped, out of room or given up."""
        return self.stopped or self.given_up or len(self.token_ids) == len(self.uniforms)


@dataclass(frozen=True, slots=True)
class DrawsAfter:
    """A history and what is to be drawn after it; see `PrefixCache` for the salt."""

    token_ids: list[int]
    draws: list[Draw]
    cache_salt: str = ""


class _Session:
    """One history during decoding, and the columns of each of its draws.

    Draws that have said the same so far are one line and one row of the forward pass: a peaked
    policy's candidates differ late or not at all, and most of the price of M of them is saved.

    Attributes:
        lines: the draws that are not done, by what they have said.
    """

    def __init__(self, job: DrawsAfter, entry: Entry, *, owner: int) -> None:
        self.owner = owner
        self.draws = job.draws
        self.entry = entry
        self.lines = [list(range(len(job.draws)))]
        self._context = self._own = self._next_column = len(job.token_ids)
        self._forked = False
        self._hiding_DB = torch.empty((len(job.draws), 0))

    def next_segment(self, like: Tensor) -> PackedSegment | None:
        """The last token of each line; None where all draws are done."""
        column = self._next_column
        if not self._forked:
            self._own = column
        self._split_lines()
        if not self.lines:
            return None
        self._next_column += len(self.lines)
        for offset, line in enumerate(self.lines):
            for i in line:
                self.draws[i].columns.append(column + offset)
        spoken = [self.draws[line[0]].token_ids for line in self.lines]
        return PackedSegment(
            buffer=self.entry.buffer,
            token_ids=[token_ids[-1] for token_ids in spoken],
            positions=[self._context + len(token_ids) - 1 for token_ids in spoken],
            column=column,
            # All draws see what was said before the first fork: plain causal attention.
            seen=joined((), range(self._own)),
            bias=self._bias(like) if self._forked else None,
            own=self._own if self._forked else None,
            read=tuple(range(len(spoken))),
            owner=self.owner,
        )

    def branches(self) -> list[Branch]:
        """Each distinct continuation, once."""
        # Up to the last token, which was drawn but never run, and so has no column.
        continuations = {tuple(d.token_ids[: len(d.columns)]): d.columns for d in self.draws}
        return [Branch(list(token_ids), columns) for token_ids, columns in continuations.items()]

    def _split_lines(self) -> None:
        """Split lines whose draws have different last tokens; drop draws that are done."""
        lines: dict[tuple[int, int], list[int]] = {}
        for number, line in enumerate(self.lines):
            for i in line:
                if not self.draws[i].done:
                    lines.setdefault((number, self.draws[i].token_ids[-1]), []).append(i)
        self.lines = list(lines.values())
        # For good, also when one line is left: its columns lie between those of the others.
        self._forked = self._forked or len(self.lines) > 1

    def _bias(self, like: Tensor) -> Tensor:
        """(lines, columns since the first fork): each line sees its own tokens alone."""
        used = self._next_column - self._own
        if used > self._hiding_DB.shape[1]:
            # As wide again: each step adds columns, and a copy at each would be quadratic.
            room = self._hiding_DB.new_full((len(self.draws), used), -math.inf)
            self._hiding_DB = torch.cat([self._hiding_DB, room], dim=1)
        active = [i for line in self.lines for i in line]
        columns = [self.draws[i].columns[-1] - self._own for i in active]
        self._hiding_DB[active, columns] = 0.0
        hiding_LB = self._hiding_DB[[line[0] for line in self.lines], :used]
        return upload(hiding_LB, like.device, dtype=like.dtype)


@torch.inference_mode()
def draw_passes(model: PackedModel, jobs: Sequence[DrawsAfter], stop_token_ids: frozenset[int]) -> Passes[int]:
    """Fill in every draw of every job, one forward pass after the other; a draw may be given up between two.

    Returns how many history tokens had to be computed.
    """
    histories = [(job.cache_salt, job.token_ids) for job in jobs]
    fresh_tokens = yield from model.compute_beginnings(histories, spare=1)
    with model.lease(histories, fresh_tokens, spare=1) as entries:
        computed = sum(len(job.token_ids) - entry.cached_tokens for job, entry in zip(jobs, entries, strict=True))
        logits = yield from _prefill(model, jobs, entries)
        sessions = [
            _Session(job, entry, owner=owner) for owner, (job, entry) in enumerate(zip(jobs, entries, strict=True))
        ]
        with model.stacked([entry.buffer for entry in entries], histories) as (order, stacks):
            sessions, logits = [sessions[i] for i in order], logits[upload(order, logits.device)]
            while True:
                lines = [[s.draws[i] for i in line] for s in sessions for line in s.lines]
                _extend(lines, logits, stop_token_ids)
                segments = [segment for s in sessions if (segment := s.next_segment(logits)) is not None]
                running = {id(segment.buffer) for segment in segments}
                for stack in stacks:
                    stack.leave_out(running)
                if not segments:
                    break
                logits = yield from model.passes(segments)
        for session in sessions:
            session.entry.branches = session.branches()
    return computed


def _prefill(model: PackedModel, jobs: Sequence[DrawsAfter], entries: Sequence[Entry]) -> Passes[Tensor]:
    """Next-token logits of every history, (jobs, vocabulary)."""
    segments = [
        history_segment(entry, job.token_ids, read_last=True, owner=owner)
        for owner, (job, entry) in enumerate(zip(jobs, entries, strict=True))
    ]
    logits = yield from model.passes(segments)
    for job, entry in zip(jobs, entries, strict=True):
        entry.token_ids = job.token_ids
    return logits


def _extend(lines: Sequence[Sequence[Draw]], logits_LV: Tensor, stop_token_ids: frozenset[int]) -> None:
    logits_LV = logits_LV.float()
    draws = [draw for line in lines for draw in line]
    line_of = [number for number, line in enumerate(lines) for _ in line]
    line_D = upload(line_of, logits_LV.device)
    tokens_D = _choose(draws, line_of, line_D, logits_LV)
    logprobs_D = logits_LV[line_D, tokens_D] - torch.logsumexp(logits_LV, dim=1)[line_D]
    # Both in one copy, for which the host waits; a double holds every token exactly.
    chosen = torch.stack([tokens_D.double(), logprobs_D.double()], dim=1).tolist()
    for draw, (token, logprob) in zip(draws, chosen, strict=True):
        draw.token_ids.append(int(token))
        draw.logprob += logprob
        draw.stopped = int(token) in stop_token_ids


def _choose(draws: Sequence[Draw], line_of: Sequence[int], line_D: Tensor, logits_LV: Tensor) -> Tensor:
    """The next token of each draw: the likeliest, or by inverting the distribution function."""
    device = logits_LV.device
    tokens_D = logits_LV.argmax(dim=1)[line_D]
    sampled = [i for i, draw in enumerate(draws) if draw.temperature > 0]
    if not sampled:
        return tokens_D
    # Draws of one line and one temperature share a distribution.
    wanted = [(line_of[i], draws[i].temperature) for i in sampled]
    place = {pair: number for number, pair in enumerate(dict.fromkeys(wanted))}
    line_P = upload([line for line, _ in place], device)
    temperature_P = upload([temperature for _, temperature in place], device)
    # The distribution function is inverted at a number that belongs to the draw and the position,
    # so a draw's tokens do not depend on the rest of the batch, as they would by multinomial().
    probs_PV = torch.softmax(logits_LV[line_P] / temperature_P[:, None], dim=1)
    # In float32 the sum of a large vocabulary ends visibly beside 1.
    cumulative_PV = probs_PV.cumsum(dim=1, dtype=torch.float64)
    cumulative_SV = cumulative_PV[upload([place[pair] for pair in wanted], device)]
    randoms = [draws[i].uniforms[len(draws[i].token_ids)] for i in sampled]
    uniforms_S = upload(randoms, device, dtype=torch.float64)
    target_S1 = uniforms_S[:, None] * cumulative_SV[:, -1:]
    # right=True: a token of probability 0 is never drawn, not even by the number 0.
    drawn_S = torch.searchsorted(cumulative_SV, target_S1, right=True).squeeze(1)
    tokens_D[upload(sampled, device)] = drawn_S.clamp_(max=logits_LV.shape[1] - 1)
    return tokens_D
