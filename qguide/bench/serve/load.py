"""Clients that ask a server again and again, and what each of them had to wait for.

A closed loop: every client has one connection and one request in flight, and asks the next when it
has its answer. What a client makes of an answer is outside its clock.
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
    """How much is asked of which endpoint, and for how long.

    Attributes:
        models: what the server runs, as the results call it.
        candidates: M.
        warm_up_s: before what counts.
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
class Asked:
    """One request, by the client's clock.

    Attributes:
        error: a status or what broke, or "".
        sample_ms: of the server, by its own clock; likewise `score_ms`.
    """

    began_s: float
    ended_s: float
    error: str = ""
    sample_ms: float = 0.0
    score_ms: float = 0.0

    @property
    def latency_ms(self) -> float:
        """From the request to the whole answer."""
        return (self.ended_s - self.began_s) * 1e3

    @property
    def overhead_ms(self) -> float:
        """What neither drawing nor scoring took: HTTP, checks, bookkeeping, and the client."""
        return self.latency_ms - self.sample_ms - self.score_ms


def measure_load(load: Load) -> LoadRow:
    """Ask until the time is up; this process has nothing else to do meanwhile."""
    gc.collect()
    gc.disable()
    try:
        return asyncio.run(_measure(load))
    finally:
        gc.enable()


def summarize(load: Load, asked: Sequence[Asked], *, from_s: float, cpu_share: float) -> LoadRow:
    """The figures of one load.

    Latencies are those of requests that began while it counted, however long they took; the rate
    counts the answers that came while it counted, whenever they were asked for.
    """
    to_s = from_s + load.seconds
    began = [one for one in asked if from_s <= one.began_s < to_s]
    good = [one for one in began if not one.error]
    answered = sum(not one.error and from_s <= one.ended_s < to_s for one in asked)
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
    """Ask with all clients side by side; the clock starts once they are there."""
    agents = [
        Agent(candidates=load.candidates, seed=load.seed + client) for client in range(load.clients)
    ]
    # A pool that 64 tasks share takes longer to find a connection than a server to answer.
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
    asked = [one for each_asked in each for one in each_asked]
    return summarize(load, asked, from_s=began_s + load.warm_up_s, cpu_share=cpu_s / whole_s)


async def _play(http: httpx.AsyncClient, agent: Agent, path: str, until_s: float) -> list[Asked]:
    asked: list[Asked] = []
    while time.perf_counter() < until_s:
        question = agent.question(path)
        began_s = time.perf_counter()
        try:
            response = await http.post(path, json=question)
        except httpx.HTTPError as error:
            asked.append(Asked(began_s, time.perf_counter(), type(error).__name__))
            continue
        ended_s = time.perf_counter()
        if response.status_code != 200:
            asked.append(Asked(began_s, ended_s, str(response.status_code)))
            continue
        answer: dict[str, Any] = response.json()
        agent.take(answer)
        stages = answer["timings_ms"]
        asked.append(
            Asked(began_s, ended_s, sample_ms=stages.get("sample", 0.0), score_ms=stages["score"])
        )
    return asked


def percentiles(values: list[float]) -> Percentiles | None:
    """The least values that so many per cent do not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p95, p99 = (ordered[ceil(len(ordered) * part / 100) - 1] for part in (50, 95, 99))
    return Percentiles(p50=p50, p95=p95, p99=p99)
