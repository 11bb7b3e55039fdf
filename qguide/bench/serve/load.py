"""Closed-loop load generator and its latency figures.

Every client has one connection and one request in flight, and sends the next one when it has the
answer. Handling the answer is not timed.
"""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any, Final

import httpx

from qguide.bench.measurement.records import Endpoint, LoadRow, Percentiles
from qguide.bench.serve.agents import Agent

PATHS: Final[dict[Endpoint, str]] = {"act": "/v1/act", "score": "/v1/score"}
_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """One load: endpoint, number of clients and duration.

    Attributes:
        models: name of the server's models in the results.
        candidates: M.
        warm_up_s: seconds before the measurement starts.
    """

    url: str
    models: str
    endpoint: Endpoint
    clients: int
    seconds: float
    warm_up_s: float
    candidates: int
    seed: int


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """Times of one request, by the client's clock.

    Attributes:
        error: a status or the class of a connection error, or "".
        sample_ms: time that the server reports for drawing; likewise `score_ms` for scoring.
    """

    began_s: float
    ended_s: float
    error: str = ""
    sample_ms: float = 0.0
    score_ms: float = 0.0

    @property
    def latency_ms(self) -> float:
        """Time from sending the request to the complete answer."""
        return (self.ended_s - self.began_s) * 1e3

    @property
    def overhead_ms(self) -> float:
        """Latency without drawing and scoring: HTTP, validation, bookkeeping and the client."""
        return self.latency_ms - self.sample_ms - self.score_ms


def measure_load(load: Load) -> LoadRow:
    """Run one load in this process, with the garbage collector switched off."""
    gc.collect()
    gc.disable()
    try:
        return asyncio.run(_measure(load))
    finally:
        gc.enable()


def summarize(
    load: Load, timings: Sequence[RequestTiming], *, from_s: float, cpu_share: float
) -> LoadRow:
    """Figures of one load.

    Latencies are those of requests that began during the measurement, however long they took; the
    rate counts the answers that arrived during it, whenever they were requested.
    """
    to_s = from_s + load.seconds
    began = [one for one in timings if from_s <= one.began_s < to_s]
    good = [one for one in began if not one.error]
    answered = sum(not one.error and from_s <= one.ended_s < to_s for one in timings)
    return LoadRow(
        models=load.models,
        endpoint=load.endpoint,
        clients=load.clients,
        seconds=load.seconds,
        requests=len(began),
        errors=dict(Counter(one.error for one in began if one.error)),
        requests_per_s=answered / load.seconds,
        latency_ms=percentiles([one.latency_ms for one in good]),
        overhead_ms=percentiles([one.overhead_ms for one in good]),
        sample_ms=median(one.sample_ms for one in good) if good else None,
        score_ms=median(one.score_ms for one in good) if good else None,
        client_cpu_share=cpu_share,
    )


async def _measure(load: Load) -> LoadRow:
    """Run all clients concurrently; the measurement starts once they exist."""
    agents = [
        Agent(candidates=load.candidates, seed=load.seed + client) for client in range(load.clients)
    ]
    # With one pool for 64 tasks, finding a connection takes longer than the server's answer.
    verify = httpx.create_ssl_context()
    clients = [
        httpx.AsyncClient(base_url=load.url, timeout=_TIMEOUT_S, verify=verify) for _ in agents
    ]
    path = PATHS[load.endpoint]
    cpu_s, began_s = time.process_time(), time.perf_counter()
    until_s = began_s + load.warm_up_s + load.seconds
    try:
        each = await asyncio.gather(
            *(_play(*one, path, until_s) for one in zip(clients, agents, strict=True))
        )
    finally:
        cpu_s, whole_s = time.process_time() - cpu_s, time.perf_counter() - began_s
        await asyncio.gather(*(client.aclose() for client in clients))
    timings = [one for client_timings in each for one in client_timings]
    return summarize(load, timings, from_s=began_s + load.warm_up_s, cpu_share=cpu_s / whole_s)


async def _play(
    http: httpx.AsyncClient, agent: Agent, path: str, until_s: float
) -> list[RequestTiming]:
    timings: list[RequestTiming] = []
    while time.perf_counter() < until_s:
        question = agent.question(path)
        began_s = time.perf_counter()
        try:
            response = await http.post(path, json=question)
        except httpx.HTTPError as error:
            timings.append(RequestTiming(began_s, time.perf_counter(), type(error).__name__))
            continue
        ended_s = time.perf_counter()
        if response.status_code != 200:
            timings.append(RequestTiming(began_s, ended_s, str(response.status_code)))
            continue
        answer: dict[str, Any] = response.json()
        agent.take(answer)
        stages = answer["timings_ms"]
        sample_ms, score_ms = stages.get("sample", 0.0), stages["score"]
        timings.append(RequestTiming(began_s, ended_s, sample_ms=sample_ms, score_ms=score_ms))
    return timings


def percentiles(values: list[float]) -> Percentiles | None:
    """Percentiles of values by the nearest-rank method; None if there are no values."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p95, p99 = (ordered[ceil(len(ordered) * part / 100) - 1] for part in (50, 95, 99))
    return Percentiles(p50=p50, p95=p95, p99=p99)
