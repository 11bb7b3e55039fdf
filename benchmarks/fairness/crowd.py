"""Load of the busy key: clients that send requests until the process is killed.

    python -m benchmarks.fairness.crowd URL KEY SCENE CLIENTS DRIPPING_PORT

It runs in a separate process, so that its own work does not delay the measured client.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any, Final, Literal, get_args

import httpx

from benchmarks.serve.agents import Agent

Asked = Literal["megabytes", "batches", "draws", "faults", "values"]
"""Scenes of requests; no two of a scene are alike."""
Scene = Literal["megabytes", "batches", "draws", "faults", "values", "chunks", "scrapes", "drips"]
DRIPPING: Final = "dripping"
"""Upstream of the server whose answers are streams of one-byte chunks without end."""

_TIMEOUT_S: Final = 120.0
_MEGABYTE: Final = 1_000_000
_ITEMS: Final = 64
_TURNS: Final = 4
_VALUES: Final = 65_000
"""Nearly as many JSON values as the server takes in a body."""
_VALUES_PER_CALL: Final = 5
_CHUNKS: Final = b"1\r\na\r\n" * 10_000


def megabyte(rng: Random) -> tuple[str, dict[str, Any]]:
    """A history of one megabyte, which exceeds the context of the embedded models."""
    sentence = f"You see mug {rng.randrange(10**6)} on the shelf. "
    text = sentence * (_MEGABYTE // len(sentence))
    messages = [{"role": "user", "content": text}]
    return "/v1/score", {"messages": messages, "candidates": ["look", "go to desk 1"]}


def batch(rng: Random) -> tuple[str, dict[str, Any]]:
    """The maximum number of histories in a batch, none of them cached."""
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
    """The maximum number of candidates of a step."""
    agent = Agent(candidates=64, seed=rng.randrange(2**31))
    return "/v1/act", agent.question("/v1/act") | {"max_tokens": 128}


def faults(rng: Random) -> tuple[str, dict[str, Any]]:
    """A megabyte of candidates that are none."""
    messages = [{"role": "user", "content": f"Find mug {rng.randrange(10**6)}."}]
    return "/v1/score", {"messages": messages, "candidates": [1] * (_MEGABYTE // 3)}


def values(rng: Random) -> tuple[str, dict[str, Any]]:
    """Very many tool calls: valid items, whose translation takes longest of all."""
    call = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
    named = call | {"name": f"look_{rng.randrange(10**6)}"}
    return "/v1/responses", {"input": [named] * (_VALUES // _VALUES_PER_CALL)}


QUESTIONS: Final[dict[Asked, Callable[[Random], tuple[str, dict[str, Any]]]]] = {
    "megabytes": megabyte,
    "batches": batch,
    "draws": draws,
    "faults": faults,
    "values": values,
}


async def crowd(url: str, key: str, scene: Scene, clients: int) -> None:
    """Send requests without end; a refusal counts as an answer."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, headers=headers) as http:
        await asyncio.gather(*(_ask(http, scene, client) for client in range(clients)))


async def _ask(http: httpx.AsyncClient, scene: Scene, client: int) -> None:
    for number in count():
        match scene:
            case "scrapes":
                await http.get("/metrics")
            case "chunks":
                await _drip(http.base_url)
            case "drips":
                asked = {"messages": [{"role": "user", "content": "Find a mug."}], "num_candidates": 1}
                await http.post("/v1/act", json=asked | {"policy": DRIPPING})
            case _:
                path, body = QUESTIONS[scene](Random(1_000_003 * client + number))
                await http.post(path, content=json.dumps(body))


async def _drip(url: httpx.URL) -> None:
    """Send a body in chunks of one byte, without a key, until the server hangs up."""
    head = f"POST /v1/score HTTP/1.1\r\nHost: {url.host}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with suppress(ConnectionError):
        _, writer = await asyncio.open_connection(url.host, url.port)
        try:
            writer.write(head.encode())
            while not writer.is_closing():
                writer.write(_CHUNKS)
                await writer.drain()
        finally:
            writer.close()


async def _drip_back(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with a stream of events in chunks of one byte, until the server hangs up."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
    writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
    with suppress(ConnectionError):
        while not writer.is_closing():
            writer.write(_CHUNKS)
            await writer.drain()


async def main() -> None:
    """Run the scene that the arguments name, and for "drips" the upstream as well."""
    url, key, named, clients, port = sys.argv[1:]
    scenes: dict[str, Scene] = {scene: scene for scene in get_args(Scene)}
    async with await asyncio.start_server(_drip_back, "127.0.0.1", int(port)):
        await crowd(url, key, scenes[named], int(clients))


if __name__ == "__main__":
    asyncio.run(main())
