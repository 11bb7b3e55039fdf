"""An in-process transformers policy: all candidates of all histories in one lockstep batch."""

import secrets
from array import array
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

import torch

from qnet.device.device_thread import DeviceThread, DeviceWorker
from qnet.engine.decoding import Draw, DrawsAfter, draw
from qnet.engine.packed_model import PackedModel, logits_of
from qnet.errors import ConfigError, HistoryTooLongError, InvalidCandidatesError
from qnet.models.checkpoint import LoadedPolicy
from qnet.tenant import current_tenant
from qnet.types import Candidate, History, SampleRequest, Sampling

DEFAULT_CACHE_BYTES = 2 * 1024**3
DEFAULT_TOKENS_PER_FORWARD = 2048
DEFAULT_MAX_ROWS = 512
DEFAULT_TEMPERATURE = 0.7


class LocalPolicy:
    """Draws from a causal LM in this process.

    `sample_batch` is for jobs, which own the device; `sample` for the server, where the device
    thread does. One object serves one of them.

    Args:
        thread: runs `sample`; without one only `sample_batch` can be used.
        cache_bytes: for the histories kept between steps; with many episodes in lockstep it has
            to hold all of them, or every step starts cold.
        tokens_per_forward: longest packed row while reading histories.
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
        self._worker = DeviceWorker(thread, self.sample_batch) if thread else None
        self.history_tokens = 0
        self.prefill_tokens = 0
        self._packed = PackedModel(
            loaded.model,
            logits_of(loaded.model),
            cache_bytes=cache_bytes,
            tokens_per_forward=max(tokens_per_forward, max_rows),
        )

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw `n` candidates on the device thread, in whichever micro-batch they fall into.

        Raises:
            HistoryTooLongError: the history leaves no room for a reply.
            ScorerUnavailableError: the device thread is dead or its queue full.
        """
        if self._worker is None:
            raise ConfigError(f"{self.name} has no device thread; build it with thread=")
        salt = current_tenant().cache_salt
        return await self._worker.submit(SampleRequest(history, n, sampling, cache_salt=salt))

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, in order.

        The same seed gives the same candidates, whatever else is in the batch (up to float
        rounding). At temperature 0 the only answer is drawn once; its copies cost 0 tokens.

        Raises:
            HistoryTooLongError: a history leaves no room for a reply.
            InvalidCandidatesError: a request asks for none.
        """
        histories = [tuple(self._encode(request)) for request in requests]
        draws = [
            self._new_draws(request, token_ids)
            for request, token_ids in zip(requests, histories, strict=True)
        ]
        salts = [request.cache_salt for request in requests]
        for wave in _waves(_jobs(salts, histories, draws), self._max_rows):
            self.history_tokens += sum(len(job.token_ids) for job in wave)
            self.prefill_tokens += draw(self._packed, wave, self._stop)
        return [
            self._candidates(drawn, n=request.n, prompt_tokens=len(token_ids))
            for request, token_ids, drawn in zip(requests, histories, draws, strict=True)
        ]

    @property
    def cached_bytes(self) -> int:
        """Bytes of keys and values kept for later steps."""
        return self._packed.store.nbytes

    def _encode(self, request: SampleRequest) -> list[int]:
        token_ids = self._renderer.encode_history(request.history)
        if len(token_ids) + 1 > self._packed.context:
            raise HistoryTooLongError(
                f"history has {len(token_ids):,} tokens; {self.name} takes "
                f"{self._packed.context:,} with the reply; shorten the history"
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
        if temperature == 0:
            return [Draw(0.0, [0.0] * length)]
        uniforms = _uniforms(token_ids, request.n, sampling, length)
        greedy = [sampling.first_greedy and i == 0 for i in range(request.n)]
        return [
            Draw(0.0 if cold else temperature, row)
            for cold, row in zip(greedy, uniforms, strict=True)
        ]

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
        copy = replace(drawn[0], completion_tokens=0)
        return drawn + [copy] * (n - len(drawn))


def _uniforms(
    token_ids: Sequence[int], n: int, sampling: Sampling, length: int
) -> list[list[float]]:
    """A stream of `length` random numbers for each of n candidates.

    The history is part of the seed: a job that plays with one seed gets unrelated draws at
    every step of every episode.
    """
    if sampling.seed is None:
        seed = secrets.randbits(63)
    else:
        digest = blake2b(array("q", [sampling.seed, *token_ids]).tobytes(), digest_size=8)
        seed = int.from_bytes(digest.digest(), "little") >> 1
    generator = torch.Generator().manual_seed(seed)
    streams: list[list[float]] = torch.rand(
        (n, length), generator=generator, dtype=torch.float64
    ).tolist()
    return streams


def _jobs(
    salts: Sequence[str], histories: Sequence[tuple[int, ...]], draws: Sequence[list[Draw]]
) -> list[DrawsAfter]:
    """One job per distinct history of a salt: equal ones are computed once."""
    jobs: dict[tuple[str, tuple[int, ...]], DrawsAfter] = {}
    for salt, token_ids, new in zip(salts, histories, draws, strict=True):
        job = jobs.setdefault((salt, token_ids), DrawsAfter(list(token_ids), [], salt))
        job.draws.extend(new)
    return list(jobs.values())


def _waves(jobs: Sequence[DrawsAfter], max_rows: int) -> list[list[DrawsAfter]]:
    """Jobs in batches of at most `max_rows` draws; one large job is a batch of its own."""
    waves: list[list[DrawsAfter]] = []
    rows = max_rows + 1
    for job in jobs:
        rows += len(job.draws)
        if rows > max_rows:
            waves.append([])
            rows = len(job.draws)
        waves[-1].append(job)
    return waves
