"""Answers of upstreams that are no completions, as callers of the server meet them."""

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from fastapi import FastAPI, Response
from fastapi.testclient import TestClient

from tests.support.serving import serving_app
from tests.unit.server.conftest import Serve, settings_of

ACT = {"messages": [{"role": "user", "content": "find the mug"}]}


@dataclass
class Upstream:
    """Gives one answer to whatever it is asked."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"{}"

    async def answer(self) -> Response:
        return Response(self.body, self.status, self.headers, media_type="application/json")


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[Upstream, str]]:
    app, upstream = FastAPI(), Upstream()
    app.add_api_route("/v1/chat/completions", upstream.answer, methods=["POST"])
    with serving_app(app) as url:
        yield upstream, f"{url}/v1"


@pytest.fixture
def client(serve: Serve, started: tuple[Upstream, str]) -> TestClient:
    return serve(settings_of(started[1]))


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("header", "told"), [("9" * 400, "86400"), ("0", "1"), ("-5", "1"), ("nan", "1"), ("1.2", "2")]
)
def test_any_retry_after_of_an_upstream_becomes_one_that_clients_can_read(
    client: TestClient, started: tuple[Upstream, str], status: int, header: str, told: str
) -> None:
    upstream = started[0]
    upstream.status, upstream.headers = status, {"Retry-After": header}
    answer = client.post("/v1/act", json=ACT)
    assert answer.status_code == status, answer.text
    assert answer.headers["retry-after"] == told


@pytest.mark.parametrize(
    ("status", "told", "code", "at_anthropics"),
    [
        (404, 404, "upstream_unknown_model", 404),
        (503, 503, "upstream_unavailable", 529),
        (529, 503, "upstream_unavailable", 529),
    ],
)
def test_an_unknown_model_and_an_overloaded_upstream_keep_their_status(
    client: TestClient, started: tuple[Upstream, str], status: int, told: int, code: str, at_anthropics: int
) -> None:
    upstream = started[0]
    upstream.status, upstream.headers = status, {}
    upstream.body = b'{"error": {"message": "there is no model m"}}'
    answer = client.post("/v1/act", json=ACT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (told, code)
    assert ("there is no model m" in answer.text) == (status == 404)
    message = client.post("/v1/messages", json=ACT | {"max_tokens": 9})
    assert message.status_code == at_anthropics


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_gzip_bomb_is_given_up_at_the_limit_of_its_upstream(
    client: TestClient, started: tuple[Upstream, str], status: int
) -> None:
    upstream = started[0]
    upstream.status, upstream.headers = status, {"Content-Encoding": "gzip"}
    upstream.body = gzip.compress(bytes(32 * 1024**2))
    answer = client.post("/v1/act", json=ACT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")
    said = "answered with more than 8,388,608 bytes; ask for fewer or shorter candidates"
    assert said in answer.json()["error"]["message"]
