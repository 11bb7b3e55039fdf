"""The busy key: clients that ask for as much as they can until they are ended.

    python -m qguide.bench.fairness.crowd URL KEY SCENE CLIENTS

In a process of its own, so that its work is not counted as the wait of the other key.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, Final, Literal

import httpx

from qguide.bench.serve.agents import Agent

Scene = Literal["megabytes", "batches", "draws"]

_TIMEOUT_S: Final = 120.0
_MEGABYTE: Final = 1_000_000
_ITEMS: Final = 64
_TURNS: Final = 4


def megabyte(rng: Random) -> tuple[str, dict[str, Any]]:
    """A history of a megabyte, which no embedded model takes."""
    sentence = f"You see mug {rng.randrange(10**6)} on the shelf. "
    text = sentence * (_MEGABYTE // len(sentence))
    messages = [{"role": "user", "content": text}]
    return "/v1/score", {"messages": messages, "candidates": ["look", "go to desk 1"]}


def batch(rng: Random) -> tuple[str, dict[str, Any]]:
    """As many histories as a batch may have, none of them known."""
    items = []
    for _ in range(_ITEMS):
        agent = Agent(candidates=5, seed=rng.randrange(2**31))
        item = agent.question("/v1/score")
        for _ in range(_TURNS):
            agent.take({"chosen": 0})
            item = agent.question("/v1/score")
        items.append(item)
    return "/v1/score/batch", {"items": items}


def draws(rng: Random) -> tuple[str, dict[str, Any]]:
    """As many candidates as a step may have."""
    agent = Agent(candidates=64, seed=rng.randrange(2**31))
    return "/v1/act", agent.question("/v1/act") | {"max_tokens": 128}


QUESTIONS: Final[dict[Scene, Callable[[Random], tuple[str, dict[str, Any]]]]] = {
    "megabytes": megabyte,
    "batches": batch,
    "draws": draws,
}


async def crowd(url: str, key: str, scene: Scene, clients: int) -> None:
    """Ask on; a refusal is an answer like any other."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, headers=headers) as http:
        await asyncio.gather(*(_ask(http, scene, client) for client in range(clients)))


async def _ask(http: httpx.AsyncClient, scene: Scene, client: int) -> None:
    for number in count():
        path, body = QUESTIONS[scene](Random(1_000_003 * client + number))
        await http.post(path, content=json.dumps(body))


if __name__ == "__main__":
    asyncio.run(crowd(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))  # type: ignore[arg-type]
