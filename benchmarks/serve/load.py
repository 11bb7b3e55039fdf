"""Closed-loop load generator and its latency figures.

Every client has one connection and one request in flight, and sends the next one when it has the
answer. Handling the answer is not timed.
"""

import asyncio
import gc
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any, Final

from benchmarks.measurement.measure import clock_of
from benchmarks.measurement.records import Endpoint, LoadRow, Percentiles
from benchmarks.serve.agents import Agent
from benchmarks.serve.connection import Connection

PATHS: Final[dict[Endpoint, str]] = {"act": "/v1/act", "score": "/v1/score"}


@dataclass(frozen=True, slots=True)
class Load:
    """One load: endpoint, number of clients and duration.

    Attributes:
        models: name of the server's models in the results.
        candidates: M.
        pids: processes of the server, whose CPU time is measured; none if they are unknown.
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
    pids: tuple[int, ...] = ()


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
    load: Load, timings: Sequence[RequestTiming], *, from_s: float, cpu_share: float, server_cpu_s: float | None = None
) -> LoadRow:
    """Figures of one load.

    Latencies are those of requests that began during the measurement, however long they took; the
    rate counts the answers that arrived during it, whenever they were requested.

    Args:
        server_cpu_s: CPU time of the server from the first request to the last.
    """
    to_s = from_s + load.seconds
    began = [one for one in timings if from_s <= one.began_s < to_s]
    good = [one for one in began if not one.error]
    answered = sum(not one.error and from_s <= one.ended_s < to_s for one in timings)
    spent_ms = None if server_cpu_s is None else server_cpu_s * 1e3 / max(1, len(timings))
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
        server_cpu_ms=spent_ms,
    )


async def _measure(load: Load) -> LoadRow:
    """Run all clients concurrently; the measurement starts once they exist."""
    agents = [Agent(candidates=load.candidates, seed=load.seed + client) for client in range(load.clients)]
    clients = [Connection(load.url) for _ in agents]
    path = PATHS[load.endpoint]
    cpu_s, began_s, server_cpu_s = time.process_time(), time.perf_counter(), _cpu_s(load)
    until_s = began_s + load.warm_up_s + load.seconds
    try:
        each = await asyncio.gather(*(_play(*one, path, until_s) for one in zip(clients, agents, strict=True)))
    finally:
        cpu_s, whole_s = time.process_time() - cpu_s, time.perf_counter() - began_s
        for client in clients:
            client.close()
    ended_s = _cpu_s(load)
    known = server_cpu_s is not None and ended_s is not None
    return summarize(
        load,
        [one for client_timings in each for one in client_timings],
        from_s=began_s + load.warm_up_s,
        cpu_share=cpu_s / whole_s,
        server_cpu_s=(ended_s or 0.0) - (server_cpu_s or 0.0) if known else None,
    )


def _cpu_s(load: Load) -> float | None:
    """CPU time of the server so far; None if its process is unknown."""
    return clock_of(load.pids).cpu_s if load.pids else None


async def _play(http: Connection, agent: Agent, path: str, until_s: float) -> list[RequestTiming]:
    timings: list[RequestTiming] = []
    while time.perf_counter() < until_s:
        question = json.dumps(agent.question(path)).encode()
        began_s = time.perf_counter()
        try:
            status, body = await http.post(path, question)
        except OSError as error:
            timings.append(RequestTiming(began_s, time.perf_counter(), type(error).__name__))
            continue
        ended_s = time.perf_counter()
        if status != 200:
            timings.append(RequestTiming(began_s, ended_s, str(status)))
            continue
        answer: dict[str, Any] = json.loads(body)
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
