"""Draws many continuations of many histories in lockstep.

Each history is computed once and shared by its draws; a draw that ended leaves the batch. Every
draw has random numbers of its own, so what it says does not depend on who shares the batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qnet.engine.attention import PackedSegment, joined
from qnet.engine.packed_model import PackedModel, history_piece
from qnet.engine.prefix_cache import Branch, Entry


@dataclass(slots=True)
class Draw:
    """One continuation, as far as it has come.

    Attributes:
        temperature: 0 takes the likeliest token.
        uniforms: a random number in [0, 1) for each token it may have.
        token_ids: what was drawn, the stop token included.
        logprob: sum of the tokens' log-probabilities at temperature 1.
        stopped: whether a stop token was drawn.
        columns: where the keys and values of its tokens lie.
    """

    temperature: float
    uniforms: list[float]
    token_ids: list[int] = field(default_factory=list)
    logprob: float = 0.0
    stopped: bool = False
    columns: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Stopped, or out of room."""
        return self.stopped or len(self.token_ids) == len(self.uniforms)


@dataclass(frozen=True, slots=True)
class DrawsAfter:
    """A history and what is to be drawn after it."""

    token_ids: list[int]
    draws: list[Draw]


class _Session:
    """One history during decoding: which of its columns belong to which draw."""

    def __init__(self, job: DrawsAfter, entry: Entry) -> None:
        self.draws = job.draws
        self.entry = entry
        self.context = len(job.token_ids)
        self.next_column = self.context
        self._owners = torch.empty(sum(len(d.uniforms) for d in job.draws), dtype=torch.long)

    @property
    def active(self) -> list[int]:
        return [i for i, draw in enumerate(self.draws) if not draw.done]

    def next_piece(self, like: Tensor) -> PackedSegment | None:
        """The last token of each active draw; None where all are done."""
        active = self.active
        if not active:
            return None
        column, used = self.next_column, self.next_column - self.context
        self.next_column += len(active)
        self._owners[used : used + len(active)] = torch.tensor(active)
        for offset, i in enumerate(active):
            self.draws[i].columns.append(column + offset)
        return PackedSegment(
            slab=self.entry.slab,
            token_ids=[self.draws[i].token_ids[-1] for i in active],
            positions=[self.context + len(self.draws[i].token_ids) - 1 for i in active],
            column=column,
            # An only draw owns every column after the history: plain causal attention.
            seen=joined((), range(column if len(self.draws) == 1 else self.context)),
            bias=None if len(self.draws) == 1 else self._bias(active, like),
            own=None if len(self.draws) == 1 else self.context,
            read=tuple(range(len(active))),
        )

    def _bias(self, active: list[int], like: Tensor) -> Tensor:
        owners = self._owners[: self.next_column - self.context]
        foreign = owners[None, :] != torch.tensor(active)[:, None]
        bias = torch.zeros(foreign.shape).masked_fill_(foreign, -math.inf)
        return bias.to(like)


@torch.inference_mode()
def draw(model: PackedModel, jobs: Sequence[DrawsAfter], stop_token_ids: frozenset[int]) -> int:
    """Fill in every draw of every job.

    Returns:
        How many history tokens had to be computed.
    """
    with model.lease([job.token_ids for job in jobs], spare=1) as entries:
        computed = sum(
            len(job.token_ids) - entry.cached_tokens
            for job, entry in zip(jobs, entries, strict=True)
        )
        logits = _prefill(model, jobs, entries)
        sessions = [_Session(job, entry) for job, entry in zip(jobs, entries, strict=True)]
        rows = [d for job in jobs for d in job.draws]
        shares = torch.tensor([len(job.draws) for job in jobs], device=logits.device)
        logits = logits.repeat_interleave(shares, dim=0)
        while True:
            _extend(rows, logits, stop_token_ids)
            rows = [d for d in rows if not d.done]
            if not rows:
                break
            pieces = [piece for s in sessions if (piece := s.next_piece(logits)) is not None]
            logits = model.run(pieces)
        for session in sessions:
            session.entry.branches = [
                Branch(d.token_ids[: len(d.columns)], d.columns) for d in session.draws
            ]
    return computed


def _prefill(model: PackedModel, jobs: Sequence[DrawsAfter], entries: Sequence[Entry]) -> Tensor:
    """Next-token logits of every history, (jobs, vocabulary)."""
    pieces = [
        history_piece(entry, job.token_ids, read_last=True)
        for job, entry in zip(jobs, entries, strict=True)
    ]
    logits = model.run(pieces)
    for job, entry in zip(jobs, entries, strict=True):
        entry.token_ids = job.token_ids
    return logits


def _extend(rows: Sequence[Draw], logits_RV: Tensor, stop_token_ids: frozenset[int]) -> None:
    """One more token for each row."""
    logits_RV = logits_RV.float()
    tokens_R = _choose(rows, logits_RV)
    logprobs_R = logits_RV.gather(1, tokens_R[:, None]).squeeze(1) - torch.logsumexp(
        logits_RV, dim=1
    )
    for row, token, logprob in zip(rows, tokens_R.tolist(), logprobs_R.tolist(), strict=True):
        row.token_ids.append(token)
        row.logprob += logprob
        row.stopped = token in stop_token_ids


def _choose(rows: Sequence[Draw], logits_RV: Tensor) -> Tensor:
    """The next token of each row: the likeliest, or by inverting the distribution function."""
    tokens_R = logits_RV.argmax(dim=1)
    hot = [i for i, row in enumerate(rows) if row.temperature > 0]
    if not hot:
        return tokens_R
    device = logits_RV.device
    index = torch.tensor(hot, device=device)
    temperatures = torch.tensor([rows[i].temperature for i in hot], device=device)
    randoms = [rows[i].uniforms[len(rows[i].token_ids)] for i in hot]
    uniforms = torch.tensor(randoms, device=device, dtype=torch.float64)
    probs = torch.softmax(logits_RV[index] / temperatures[:, None], dim=1)
    cumulative = probs.cumsum(dim=1, dtype=torch.float64)
    target = uniforms[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    tokens_R[index] = drawn.clamp_(max=logits_RV.shape[1] - 1)
    return tokens_R
