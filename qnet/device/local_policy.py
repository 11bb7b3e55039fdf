"""In-process transformers policy: all candidates of all histories in one lockstep batch."""

import secrets
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b

import torch

from qguide.qnet.device.device_thread import DeviceThread, DeviceWorker
from qguide.qnet.engine.decoding import Draw, DrawsAfter, draw_passes
from qguide.qnet.engine.packed_model import DEFAULT_CACHE_BYTES, DEFAULT_TOKENS_PER_FORWARD, PackedModel, logits_of
from qguide.qnet.errors import ConfigError, HistoryTooLongError, InvalidCandidatesError
from qguide.qnet.models.checkpoint import LoadedPolicy
from qguide.qnet.sliced_scorer import Slices, finish
from qguide.qnet.types import DEFAULT_TEMPERATURE, Candidate, History, SampleRequest, Sampling
from qguide.qnet.work import TokenUsage, current_tenant, record_usage

DEFAULT_MAX_ROWS = 512
_SHARED_PART = 8
"""Draws of several callers are one batch only where they are an eighth of a forward pass: a pass of
so few takes hardly longer than one of a single draw, so that no caller waits for another's."""


class LocalPolicy:
    """Draws from a causal LM in this process.

    `sample_batch` is for jobs, which own the device; `sample` is for the server, where the device
    thread owns it. One object is used in one of the two ways.

    Args:
        thread: runs `sample`; without it only `sample_batch` can be used.
        cache_bytes: for histories kept between steps; with many episodes in lockstep it has to
            hold all of them, or every step starts with an empty cache.
        tokens_per_forward: longest packed row of a prefill.
        max_rows: most candidates drawn at once.

    Attributes:
        history_tokens: of the distinct histories drawn after, so far.
        prefill_tokens: how many of them had to be computed; the rest came from the cache.
    """

    def __init__(
        self,
        loaded: LoadedPolicy,
        *,
        thread: DeviceThread | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        tokens_per_forward: int = DEFAULT_TOKENS_PER_FORWARD,
        max_rows: int = DEFAULT_MAX_ROWS,
    ) -> None:
        self.name = loaded.name
        self._renderer = loaded.renderer
        self._stop = frozenset(loaded.renderer.stop_token_ids)
        self._max_rows = max_rows
        self._worker = (
            DeviceWorker(
                thread,
                self._slices,
                cost=lambda asked: len(asked.draws),
                max_shared_cost=max(1, tokens_per_forward // _SHARED_PART),
                observe_unanswered=record_usage,
            )
            if thread
            else None
        )
        self.history_tokens = 0
        self.prefill_tokens = 0
        self._packed = PackedModel(
            loaded.model, logits_of(loaded.model), cache_bytes=cache_bytes, tokens_per_forward=tokens_per_forward
        )

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw `n` candidates on the device thread, in a micro-batch with other requests."""
        if self._worker is None:
            raise ConfigError(f"{self.name} has no device thread; build it with thread=")
        salt = current_tenant().cache_salt
        request = SampleRequest(history, n, sampling, cache_salt=salt)
        asked = await self._worker.thread.tokenize(
            partial(self._ask, request), characters=sum(len(turn.text) for turn in history)
        )
        return await self._worker.submit(asked)

    async def count_tokens(self, history: History) -> int:
        """Tokens of a history as this policy reads it, however many they are."""
        if self._worker is None:
            raise ConfigError(f"{self.name} has no device thread; build it with thread=")
        encode = partial(self._renderer.encode_history, history)
        characters = sum(len(turn.text) for turn in history)
        return len(await self._worker.thread.tokenize(encode, characters=characters))

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, in order.

        The same seed gives the same candidates, whatever else is in the batch (up to float
        rounding). At temperature 0 the only answer is drawn once; its copies cost 0 tokens.
        """
        return finish(self._slices([self._ask(request) for request in requests]))

    def _ask(self, request: SampleRequest) -> "_Asked":
        """The request as tokens and draws; for any thread."""
        token_ids = self._encode(request)
        return _Asked(request, token_ids, self._new_draws(request, token_ids))

    def _slices(self, asked: Sequence["_Asked"]) -> Slices[list[list[Candidate]]]:
        read = Counter[int]()
        for wave in _waves(_jobs(asked), self._max_rows):
            self.history_tokens += sum(len(job.token_ids) for job, _ in wave)
            self.prefill_tokens += yield from self._draw(wave, asked, read)
        return [self._candidates(one.draws, n=one.request.n, prompt_tokens=len(one.token_ids)) for one in asked]

    def _draw(self, wave: Sequence["_Job"], asked: Sequence["_Asked"], read: Counter[int]) -> Slices[int]:
        """Fill in the draws of a wave; how many history tokens had to be computed.

        Args:
            read: history tokens that were computed for each of `asked`; added to.
        """
        passes = draw_passes(self._packed, [job for job, _ in wave], self._stop)
        try:
            batch = next(passes)
            while True:
                decoding = any(draw.token_ids for job, _ in wave for draw in job.draws)
                # Reading is charged by segment, drawing by the draws that go on: what requests with
                # one history share is charged to the first.
                for segment in () if decoding else batch:
                    first, *_ = wave[segment.owner][1]
                    read[first] += len(segment.token_ids)
                spending = {
                    i: TokenUsage(read[i], asked[i].drawn_tokens + decoding * asked[i].drawing)
                    for _, indices in wave
                    for i in indices
                }
                given_up = yield spending
                for i in given_up or ():
                    asked[i].give_up()
                batch = next(passes)
        except StopIteration as end:
            computed: int = end.value
            return computed
        finally:
            passes.close()

    @property
    def context(self) -> int:
        """Most tokens of a history with the reply."""
        return self._packed.context

    @property
    def cached_bytes(self) -> int:
        """Bytes of keys and values kept for later steps."""
        return self._packed.store.nbytes

    def _encode(self, request: SampleRequest) -> list[int]:
        context = self._packed.context
        token_ids = self._renderer.encode_history(request.history, most_tokens=context)
        if len(token_ids) + 1 > context:
            raise HistoryTooLongError(
                f"history has {len(token_ids):,} tokens; {self.name} takes "
                f"{context:,} with the reply; shorten the history"
            )
        return token_ids

    def _new_draws(self, request: SampleRequest, token_ids: Sequence[int]) -> list[Draw]:
        if request.n < 1:
            raise InvalidCandidatesError(f"n is {request.n}; draw at least 1 candidate")
        sampling = request.sampling
        length = self._packed.context - len(token_ids)
        if sampling.max_tokens is not None:
            length = min(sampling.max_tokens, length)
        temperature = sampling.temperature
        if temperature is None:
            temperature = DEFAULT_TEMPERATURE
        # One draw, whatever n is: the others would be equal.
        if temperature == 0:
            return [Draw(0.0, [0.0] * length)]
        uniforms = _uniforms(token_ids, request.n, sampling, length)
        greedy = [sampling.first_greedy and i == 0 for i in range(request.n)]
        return [Draw(0.0 if is_greedy else temperature, row) for is_greedy, row in zip(greedy, uniforms, strict=True)]

    def _candidates(self, draws: Sequence[Draw], *, n: int, prompt_tokens: int) -> list[Candidate]:
        drawn = [
            Candidate(
                message=self._renderer.decode_reply(d.token_ids),
                completion_tokens=len(d.token_ids),
                logprob=d.logprob,
                finished=d.stopped,
                prompt_tokens=prompt_tokens,
            )
            for d in draws
        ]
        # At temperature 0 one draw stands for all n, and is paid for once.
        copy = replace(drawn[0], completion_tokens=0)
        return drawn + [copy] * (n - len(drawn))


def _uniforms(token_ids: Sequence[int], n: int, sampling: Sampling, length: int) -> list[list[float]]:
    """A stream of `length` random numbers for each of n candidates.

    The history is part of the seed: a job that plays with one seed gets unrelated draws at every step of every episode.
    """
    if sampling.seed is None:
        seed = secrets.randbits(63)
    else:
        digest = blake2b(array("q", [sampling.seed, *token_ids]).tobytes(), digest_size=8)
        seed = int.from_bytes(digest.digest(), "little") >> 1
    generator = torch.Generator().manual_seed(seed)
    streams: list[list[float]] = torch.rand((n, length), generator=generator, dtype=torch.float64).tolist()
    return streams


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, the tokens of its history and the draws that will be its candidates."""

    request: SampleRequest
    token_ids: list[int]
    draws: list[Draw]

    @property
    def drawn_tokens(self) -> int:
        """Tokens of its candidates so far."""
        return sum(len(draw.token_ids) for draw in self.draws)

    @property
    def drawing(self) -> int:
        """Number of candidates that are not finished."""
        return sum(not draw.done for draw in self.draws)

    def give_up(self) -> None:
        """Stop drawing for this request."""
        for draw in self.draws:
            draw.given_up = True


_Job = tuple[DrawsAfter, list[int]]  # draws after one history, and the indices of the requests that they are for


def _jobs(asked: Sequence[_Asked]) -> list[_Job]:
    """One job per distinct history of a salt: equal ones are computed once."""
    jobs: dict[tuple[str, tuple[int, ...]], _Job] = {}
    for index, one in enumerate(asked):
        salt = one.request.cache_salt
        unknown = DrawsAfter(one.token_ids, [], salt)
        job, indices = jobs.setdefault((salt, tuple(one.token_ids)), (unknown, []))
        job.draws.extend(one.draws)
        indices.append(index)
    # Those of like length beside each other, which are attended to together.
    return sorted(jobs.values(), key=lambda job: len(job[0].token_ids))


def _waves(jobs: Sequence[_Job], max_rows: int) -> list[list[_Job]]:
    """Jobs in batches of at most `max_rows` draws; one large job is a batch of its own."""
    waves: list[list[_Job]] = []
    rows = max_rows + 1
    for job, indices in jobs:
        rows += len(job.draws)
        if rows > max_rows:
            waves.append([])
            rows = len(job.draws)
        waves[-1].append((job, indices))
    return waves
