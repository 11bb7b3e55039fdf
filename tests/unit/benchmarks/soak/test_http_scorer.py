"""A server that is tried from outside, and what is said when it refuses."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from benchmarks.soak.http_scorer import HttpScorer
from qguide.qnet.errors import ScorerUnavailableError
from qguide.qnet.types import Message, ScoreRequest
from qguide.server.app import create_app
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.serving import serving_app

TASK = (Message("user", "open the drawer"),)
GO, TAKE = Message("assistant", "go"), Message("assistant", "take")


@pytest.fixture
def served() -> Iterator[HttpScorer]:
    """A server with the scripted models."""
    settings = Settings(policy=SCRIPTED, q_models={"demo@1": SCRIPTED})
    with serving_app(create_app(settings)) as url, closing(HttpScorer(url, connections=2)) as served:
        yield served


def test_each_request_gets_its_q_values(served: HttpScorer) -> None:
    results = served.score([ScoreRequest(TASK, (GO, TAKE)), ScoreRequest(TASK, (GO,))])
    assert [len(result.q_values) for result in results] == [2, 1]


def test_a_refusal_is_told_with_its_code_and_message(served: HttpScorer) -> None:
    with pytest.raises(ScorerUnavailableError) as refused:
        served.score([ScoreRequest(TASK, (GO, TAKE, GO))])
    assert str(refused.value) == (
        "the server answered /v1/score with 400 invalid_candidates: candidates[0] and "
        "candidates[2] are equal; send each candidate once"
    )


@contextmanager
def answering(body: bytes) -> Iterator[HttpScorer]:
    """A server that answers every question with 502 and this."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(502)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever).start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            with closing(HttpScorer(url, connections=1)) as served:
                yield served
        finally:
            server.shutdown()


@pytest.mark.parametrize("body", [b"<html>", b'{"error": "no"}', b"\xff"])
def test_a_refusal_in_another_shape_is_told_with_its_status(body: bytes) -> None:
    with answering(body) as served, pytest.raises(ScorerUnavailableError, match=r"with 502$"):
        _ = served.cache


def test_a_long_refusal_is_cut_and_stays_one_printable_line() -> None:
    body = b'{"error": {"code": "x", "message": "one\\n\\u001b[31mtwo%s"}}' % (b"!" * 5000)
    with answering(body) as served, pytest.raises(ScorerUnavailableError) as refused:
        _ = served.cache
    assert "502 x: one  [31mtwo!!" in str(refused.value)
    assert len(str(refused.value)) < 400
