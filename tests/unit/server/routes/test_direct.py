"""A direct route answers as FastAPI's own route of the same endpoint does."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from qguide.server.app import create_app
from qguide.server.routes.dependencies import TIMEOUT_HEADER, DirectRoute
from qguide.server.settings.settings import SCRIPTED, Settings

TASK = [{"role": "user", "content": "Find the mug."}]
SCORED: dict[str, Any] = {"messages": TASK, "candidates": ["look", "go to desk 1"]}
DRAWN: dict[str, Any] = {"messages": TASK, "num_candidates": 3, "seed": 5}
CHAT: dict[str, Any] = {"model": SCRIPTED, "messages": TASK, "seed": 5}
PAIRS: dict[str, Any] = {"model": "demo", "text_1": "mug", "text_2": ["desk", "mug"]}
CHANGING = ("timings_ms", "id", "created", "request_id")


@pytest.fixture
async def clients() -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """One server with direct routes, and one that has only FastAPI's."""
    settings = Settings(policy=SCRIPTED, q_models={"demo@1": SCRIPTED}, unknown_models="error")
    direct, plain = create_app(settings), create_app(settings)
    plain.router.routes[:] = [r for r in plain.router.routes if not isinstance(r, DirectRoute)]
    assert len(direct.router.routes) == len(plain.router.routes) + 3
    async with (
        direct.router.lifespan_context(direct),
        plain.router.lifespan_context(plain),
        client_of(direct) as one,
        client_of(plain) as other,
    ):
        yield one, other


def client_of(app: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


def without_changing(answer: Any) -> Any:
    """An answer without its ids and times."""
    if isinstance(answer, dict):
        return {k: without_changing(v) for k, v in answer.items() if k not in CHANGING}
    return [without_changing(one) for one in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/score", SCORED, 200),
        ("/v1/score", PAIRS, 200),
        ("/v1/act", DRAWN, 200),
        ("/v1/chat/completions", CHAT, 200),
        ("/v1/score", {**SCORED, "candidates": []}, 400),
        ("/v1/score", {**SCORED, "q_model": "nobody"}, 404),
        ("/v1/score", {**SCORED, "candidates": [1]}, 422),
        ("/v1/score", {}, 422),
        ("/v1/act", {**DRAWN, "num_candidates": True}, 422),
        ("/v1/act", {**DRAWN, "surprise": 1}, 422),
        ("/v1/act", {**DRAWN, "num_candidates": 0}, 400),
        ("/v1/chat/completions", {**CHAT, "model": "nobody"}, 404),
        ("/v1/chat/completions", {**CHAT, "messages": "mug"}, 400),
    ],
)
async def test_answers_are_those_of_fastapis_route(
    clients: tuple[httpx.AsyncClient, httpx.AsyncClient], path: str, body: dict[str, Any], status: int
) -> None:
    one, other = [await client.post(path, json=body) for client in clients]
    assert (one.status_code, other.status_code) == (status, status)
    assert without_changing(one.json()) == without_changing(other.json())
    assert list(one.json()) == list(other.json())
    assert one.headers["content-type"] == other.headers["content-type"]
    assert one.headers.keys() == other.headers.keys()


@pytest.mark.parametrize(
    ("headers", "content"),
    [
        ({"content-type": "application/json"}, b"{"),
        ({"content-type": "application/json"}, b'{"messages": "\xff"}'),
        ({"content-type": "application/json"}, b"[" * 100_000),
        ({"content-type": "application/json"}, b""),
        ({"content-type": "application/json; charset=utf-8"}, b'{"messages": []}'),
        ({"content-type": "text/plain"}, b'{"messages": []}'),
        ({}, b'{"messages": []}'),
        ({"content-type": "application/json", TIMEOUT_HEADER: "soon"}, b'{"messages": []}'),
        ({"content-type": "application/json", TIMEOUT_HEADER: "0"}, b'{"messages": []}'),
    ],
)
async def test_what_is_no_ordinary_request_is_refused_in_fastapis_words(
    clients: tuple[httpx.AsyncClient, httpx.AsyncClient], headers: dict[str, str], content: bytes
) -> None:
    one, other = [await client.post("/v1/score", headers=headers, content=content) for client in clients]
    assert one.status_code == other.status_code == 422
    assert without_changing(one.json()) == without_changing(other.json())


async def test_two_content_types_are_refused_in_fastapis_words(
    clients: tuple[httpx.AsyncClient, httpx.AsyncClient],
) -> None:
    headers = [("content-type", "text/plain"), ("content-type", "application/json")]
    one, other = [await client.post("/v1/score", headers=headers, content=json.dumps(SCORED)) for client in clients]
    assert one.status_code == other.status_code == 422
    assert without_changing(one.json()) == without_changing(other.json())


async def test_methods_and_metrics_stay_those_of_the_route(
    clients: tuple[httpx.AsyncClient, httpx.AsyncClient],
) -> None:
    direct, _ = clients
    refused = await direct.get("/v1/score")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    await direct.post("/v1/score", json=SCORED)
    metrics = (await direct.get("/metrics")).text
    assert 'qguide_requests_total{route="/v1/score",status="200"} 1.0' in metrics
