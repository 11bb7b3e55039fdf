"""Logs say who asked what when, and never what was said."""

import asyncio
import gc
import io
import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from typing import Any

import pytest
import stamina
import structlog
from stamina.instrumentation import set_on_retry_hooks

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.errors import ConfigError
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.qnet.types import ScoreRequest, ScoreResult
from qguide.server.http.keys import create_key
from qguide.server.observability.logs import configure_logging
from qguide.server.q_models.registry import Models
from qguide.server.settings.settings import Settings
from tests.unit.server.conftest import FAKES, Serve, models_of

CANARY = "canary-in-the-prompt"
BODY = {"messages": [{"role": "user", "content": f"a {CANARY} place"}], "candidates": [f"go to {CANARY}", "stay"]}


@pytest.fixture
def written(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """The server's log lines; the parameter is the level, INFO by default."""
    root, hook = logging.getLogger(), threading.excepthook
    handlers, level = list(root.handlers), root.level
    with redirect_stderr(io.StringIO()) as written:
        configure_logging(getattr(request, "param", "INFO"))
        try:
            yield written
        finally:
            structlog.reset_defaults()
            set_on_retry_hooks(None)
            logging.basicConfig(handlers=handlers, level=level, force=True)
            threading.excepthook = hook


def lines_of(written: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


class QuotingScorer(ScriptedScorer):
    """Fails with the prompt in its message, and in the message of the cause."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Fail."""
        try:
            raise ZeroDivisionError(f"in {requests[0].history[0].content}")
        except ZeroDivisionError as error:
            raise KeyError(f"of {requests[0].candidates[0].content}") from error


class DyingScorer(ScriptedScorer):
    """Ends its thread with the prompt in the message."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Die."""
        raise Death(f"in {requests[0].history[0].content}")


class Death(BaseException):
    """An exception that no worker survives."""


def served(scorer: ScriptedScorer) -> Any:
    def build(_: Settings) -> Models:
        return models_of(ScriptedPolicy(), scorer, DeviceThread())

    return build


def test_a_request_is_one_line_with_its_ids_and_its_cost(serve: Serve, written: io.StringIO, tmp_path: Any) -> None:
    key = create_key(tmp_path / "keys.json", "ada")
    client = serve(FAKES.model_copy(update={"keys_file": tmp_path / "keys.json"}))
    headers = {"X-Request-ID": "logged", "X-API-Key": key}
    answer = client.post("/v1/score", json=BODY | {"episode_id": "game-7"}, headers=headers)
    (line,) = lines_of(written)
    assert (line["event"], line["level"], line["request_id"]) == ("request", "info", "logged")
    assert (line["route"], line["status"], line["key"]) == ("/v1/score", 200, "ada")
    assert line["episode_id"] == "game-7"
    assert line["tokens"] == answer.json()["usage"]["scored_tokens"] > 0
    assert CANARY not in written.getvalue()
    assert key not in written.getvalue()


@pytest.mark.parametrize(
    "body",
    [
        BODY | {"q_model": CANARY},
        BODY | {"messages": [{"role": CANARY, "content": CANARY}]},
        BODY | {"candidates": [CANARY, CANARY]},
        BODY | {CANARY: 1},
    ],
)
def test_a_refused_request_leaves_nothing_of_itself(serve: Serve, written: io.StringIO, body: dict[str, Any]) -> None:
    answer = serve().post("/v1/score", json=body)
    assert 400 <= answer.status_code < 500
    assert len(lines_of(written)) == 1
    assert CANARY not in written.getvalue()


def test_a_failure_is_its_types_and_places_without_their_messages(serve: Serve, written: io.StringIO) -> None:
    client = serve(build=served(QuotingScorer({})))
    assert client.post("/v1/score", json=BODY).status_code == 500
    failure, _request = lines_of(written)
    assert (failure["event"], failure["level"]) == ("request_failed", "error")
    assert [one["type"] for one in failure["exception"]] == ["KeyError", "ZeroDivisionError"]
    assert failure["exception"][0]["places"][-1].startswith("test_logs.py:")
    assert CANARY not in written.getvalue()


def test_a_bug_of_a_scorer_that_a_fallback_covers_is_logged(serve: Serve, written: io.StringIO) -> None:
    client = serve(build=served(QuotingScorer({})))
    asked = {"messages": BODY["messages"], "num_candidates": 2}
    assert client.post("/v1/act", json=asked).status_code == 500
    answer = client.post("/v1/act", json=asked | {"fallback": "first"})
    assert (answer.status_code, answer.json()["guided"]) == (200, False)
    assert answer.json()["unguided_reason"] == "the Q model failed"
    (failure,) = (line for line in lines_of(written) if line["event"] == "the Q model failed")
    assert failure["request_id"] == answer.headers["x-request-id"]
    assert failure["exception"][0]["type"] == "KeyError"
    assert CANARY not in written.getvalue()


async def test_a_retry_is_a_line_without_the_message(written: io.StringIO) -> None:
    async for attempt in stamina.retry_context(on=ConfigError, attempts=2, wait_initial=0.01):
        with attempt:
            if attempt.num == 1:
                raise ConfigError(CANARY)
    (line,) = lines_of(written)
    assert (line["event"], line["reason"], line["retry"]) == ("retry_scheduled", "ConfigError", 1)
    assert line["wait_s"] >= 0
    assert CANARY not in written.getvalue()


@pytest.mark.parametrize("written", ["DEBUG"], indirect=True)
def test_at_debug_an_operator_sees_the_messages(serve: Serve, written: io.StringIO) -> None:
    serve(build=served(QuotingScorer({}))).post("/v1/score", json=BODY)
    failures = [line for line in lines_of(written) if line["event"] == "request_failed"]
    assert CANARY in failures[0]["exception"][0]["message"]


def test_a_thread_that_dies_says_where(serve: Serve, written: io.StringIO) -> None:
    client = serve(build=served(DyingScorer({})))
    assert client.post("/v1/score", json=BODY).status_code == 503
    patience = time.monotonic() + 30
    while "thread_died" not in written.getvalue() and time.monotonic() < patience:
        time.sleep(0.01)  # the thread answers the request before it says why it ends
    (death,) = (line for line in lines_of(written) if line["event"] == "thread_died")
    assert (death["thread"], death["exception"][0]["type"]) == ("qguide-device", "Death")
    assert CANARY not in written.getvalue()


def test_of_what_a_library_fills_in_numbers_and_types_are_told(written: io.StringIO) -> None:
    logging.getLogger("some.exporter").error("code: %s, reason: %s, %s", 404, CANARY, ConfigError(CANARY))
    (line,) = lines_of(written)
    assert (line["event"], line["arguments"]) == ("code: %s, reason: %s, %s", [404, "str", "ConfigError"])
    assert CANARY not in written.getvalue()


async def test_other_libraries_lines_are_json_without_what_was_filled_in(written: io.StringIO) -> None:
    logging.getLogger("some.library").warning("cannot parse %r", CANARY)
    logging.getLogger("some.library").info("not worth a line")
    try:
        raise ConfigError(CANARY)
    except ConfigError:
        logging.getLogger("some.library").exception("Exception in ASGI application\n")

    async def fail() -> None:
        raise ValueError(CANARY)

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del task  # asyncio says that nobody asked what became of it, with the exception's text
    gc.collect()
    said = [(line["level"], line["event"]) for line in lines_of(written)]
    assert said == [
        ("warning", "cannot parse %r"),
        ("error", "Exception in ASGI application"),
        ("error", "Task exception was never retrieved"),
    ]
    assert CANARY not in written.getvalue()


def test_a_group_shows_its_members_and_a_circle_ends(written: io.StringIO) -> None:
    one, two = ValueError(CANARY), TypeError(CANARY)
    one.__cause__, two.__cause__ = two, one
    structlog.get_logger().error("failed", exc_info=ExceptionGroup(CANARY, [one]))
    (line,) = lines_of(written)
    types = [failure["type"] for failure in line["exception"]]
    assert types == ["ExceptionGroup", "ValueError", "TypeError"]
    assert CANARY not in written.getvalue()
