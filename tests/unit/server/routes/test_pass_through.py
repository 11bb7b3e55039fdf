"""Embeddings, files and batches, which go on to an upstream if the operator allows it."""

from typing import Any

import openai
import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from qguide.server.settings.settings import Settings
from tests.support.dialect_upstream import DialectUpstream
from tests.unit.server.conftest import Serve, settings_of

ALL = {"embeddings": "demo", "files": "demo", "batches": "demo"}


@pytest.fixture
def passing(serve: Serve, address: tuple[DialectUpstream, str], upstream: DialectUpstream) -> TestClient:
    return serve(settings_of(address[1], pass_through=ALL))


def gpt(client: TestClient) -> openai.OpenAI:
    return openai.OpenAI(base_url="http://127.0.0.1/v1", api_key="callers", http_client=client, max_retries=0)


def test_texts_are_embedded_by_the_upstreams_model(passing: TestClient, upstream: DialectUpstream) -> None:
    told = gpt(passing).embeddings.create(model="dear", input=["a", "b"], encoding_format="float")
    assert [one.embedding for one in told.data] == [[0.5, 0.25]] * 2
    [asked] = upstream.asked
    assert asked == {"model": "fake-1", "input": ["a", "b"], "encoding_format": "float"}
    assert "qguide_prompt_tokens_total 2.0" in passing.get("/metrics").text


def test_files_and_batches_lie_at_the_upstream(passing: TestClient, upstream: DialectUpstream) -> None:
    client = gpt(passing)
    kept = client.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
    assert client.files.list(purpose="batch", limit=1).data[0].id == kept.id
    assert client.files.content(kept.id).read() == b"{}\n"
    begun = client.batches.create(input_file_id=kept.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert client.batches.cancel(begun.id).status == "cancelling"
    assert client.files.delete(kept.id).deleted
    assert "Bearer callers" not in upstream.keys


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/files/..%2Fmodels"),
        ("GET", "/v1/files/%2e%2e/content"),
        ("GET", "/v1/files/a%3Fb"),
        ("POST", "/v1/batches/a/delete"),
        ("POST", "/v1/fine_tuning/jobs"),
    ],
)
def test_no_other_path_reaches_the_upstream(
    passing: TestClient, upstream: DialectUpstream, method: str, path: str
) -> None:
    assert passing.request(method, path).status_code in (404, 405, 422)
    assert not upstream.asked


@pytest.mark.parametrize("allowed", [{}, {"files": "demo"}])
def test_nothing_is_passed_on_unless_the_operator_says_so(
    serve: Serve, address: tuple[DialectUpstream, str], upstream: DialectUpstream, allowed: Any
) -> None:
    client = serve(settings_of(address[1], pass_through=allowed))
    answer = client.post("/v1/embeddings", json={"input": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert not upstream.asked


def test_what_the_upstream_refuses_is_told(passing: TestClient) -> None:
    with pytest.raises(openai.NotFoundError, match="404 - no"):
        gpt(passing).files.retrieve("file-unknown")
    with pytest.raises(openai.BadRequestError, match=r"demo .*input"):
        gpt(passing).post("/embeddings", body={"encoding_format": "float"}, cast_to=object)


def test_an_answer_says_when_to_come_again_and_is_no_page(passing: TestClient) -> None:
    answer = passing.get("/v1/files/file-busy")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_what_is_passed_on_ends_with_the_requests_time(passing: TestClient, upstream: DialectUpstream) -> None:
    upstream.delay_s = 20.0
    headers = {"X-QGuide-Timeout-S": "0.2"}
    for answer in (
        passing.post("/v1/embeddings", json={"input": ["a"]}, headers=headers),
        passing.get("/v1/files", headers=headers),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "deadline_exceeded")


@pytest.mark.parametrize("usage", [[], {"prompt_tokens": -5}])
def test_an_odd_usage_of_the_upstream_counts_for_nothing(
    passing: TestClient, upstream: DialectUpstream, usage: Any
) -> None:
    upstream.odd = {"usage": usage}
    assert passing.post("/v1/embeddings", json={"input": ["a"]}).json()["usage"] == usage


def test_an_upstream_without_these_routes_stops_the_start() -> None:
    with pytest.raises(ValidationError, match=r"pass_through .*'gone', .*upstreams"):
        Settings(pass_through={"files": "gone"})
    claude: Any = {"url": "http://127.0.0.1:9/v1", "model": "m", "dialect": "messages"}
    with pytest.raises(ValidationError, match=r"pass_through .*'claude', .*'messages' .*'chat' or 'responses'"):
        Settings(upstreams={"claude": claude}, pass_through={"embeddings": "claude"})
