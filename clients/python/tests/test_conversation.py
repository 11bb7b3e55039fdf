"""The client's retries: their conditions, their waits, and the error when it gives up."""

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime
from itertools import repeat
from time import sleep

import httpx
import pytest
import qguide_client
from qguide_client import AsyncQGuide, QGuide, Retry, errors
from qguide_client.calls import Call
from qguide_client.conversation import Reply, converse, retry_after_s
from qguide_client.types import Readiness

from clients.python.tests.conftest import AT_ONCE, client_of

REQUEST = httpx.Request("POST", "http://qguide.test/v1/act")
ASK = Call("POST", "/v1/act", Readiness)
TELL = Call("POST", "/v1/act", Readiness, repeatable=False)
OK = httpx.Response(200, json={"status": "ok"}, request=REQUEST)


def refused(status: int, code: str = "", **headers: str) -> httpx.Response:
    body = {"error": {"code": code, "message": "not now", "request_id": "r1"}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json=body, headers=named, request=REQUEST)


def broken(kind: type[httpx.RequestError]) -> httpx.RequestError:
    return kind("it broke", request=REQUEST)


def waits_before(replies: Iterator[Reply], call: Call[Readiness] = ASK, retry: Retry | None = None) -> list[float]:
    """Every wait of a conversation; the draw is always 0.5."""
    conversation = converse(call, retry or Retry(), request_id="r0", chance=lambda: 0.5)
    waits = [next(conversation)]
    with suppress(StopIteration):
        while True:
            waits.append(conversation.send(next(replies)))
    return waits


def test_an_answer_needs_no_second_question() -> None:
    assert waits_before(iter([OK])) == [0]


def test_waits_are_drawn_and_double() -> None:
    replies = iter([refused(503), refused(503), refused(503), OK])
    retry = Retry(attempts=4, first_wait_s=1, max_wait_s=3)
    assert waits_before(replies, retry=retry) == [0, 0.5, 1.0, 1.5]


def test_nothing_is_asked_again_after_the_deadline() -> None:
    times = iter((0.0, 0.25, 1.0, 1.75))  # the start, and the end of each attempt
    call = Call("POST", "/v1/act", Readiness, deadline_s=2.0)
    retry = Retry(attempts=9, first_wait_s=1, max_wait_s=1)
    conversation = converse(call, retry, request_id="r0", chance=lambda: 0.5, clock=lambda: next(times))
    assert next(conversation) == 0
    assert [conversation.send(refused(503)) for _ in range(2)] == [0.5, 0.5]
    with pytest.raises(errors.RefusedError):
        conversation.send(refused(503))


def test_the_server_is_told_what_is_left_of_the_time_and_is_not_waited_for_much_longer() -> None:
    told: list[float] = []
    patience: list[dict[str, float]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        told.append(float(request.headers["X-QGuide-Timeout-S"]))
        sleep(0.002)  # more than the unit in which it is told; the wait drawn may be shorter
        patience.append(request.extensions["timeout"])
        return refused(503)

    task = [{"role": "user", "content": "task"}]
    with client_of(answer, Retry(attempts=3, first_wait_s=0.01)) as client:
        with pytest.raises(errors.RefusedError):
            client.act(task, deadline_s=3.0)
        with pytest.raises(errors.RefusedError):
            client.act(task, deadline_s=1000.0)
    assert 3.0 >= told[0] > told[1] > told[2] > 0
    assert 3.5 < patience[0]["read"] < 4.1
    assert (patience[3]["read"], patience[3]["connect"]) == (90.0, 5.0)


async def test_the_async_client_tells_its_deadline_too() -> None:
    told: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        told.append(request.headers["X-QGuide-Timeout-S"])
        return refused(418)

    transport = httpx.MockTransport(answer)
    async with AsyncQGuide("http://qguide.test", retry=AT_ONCE, transport=transport) as client:
        with pytest.raises(errors.RefusedError):
            await client.act([{"role": "user", "content": "task"}], deadline_s=2.0)
    assert 1.9 < float(told[0]) <= 2.0


def test_a_server_understands_the_deadline(client: QGuide) -> None:
    task = [{"role": "user", "content": "Your task is to: look."}]
    assert client.act(task, deadline_s=20.0).action


def test_retry_after_is_honoured_and_spread() -> None:
    replies = iter([refused(429, retry_after="7"), OK])
    assert waits_before(replies, retry=Retry(first_wait_s=1)) == [0, 7.5]


def test_a_wait_that_is_too_long_is_left_to_the_caller() -> None:
    replies = iter([refused(429, "tokens_used_up", retry_after="3600"), OK])
    with pytest.raises(errors.TokensUsedUpError) as caught:
        waits_before(replies)
    assert caught.value.retry_after_s == 3600
    assert next(replies) is OK


@pytest.mark.parametrize(
    "reply",
    [refused(429), refused(503), broken(httpx.ConnectError), broken(httpx.ConnectTimeout), broken(httpx.PoolTimeout)],
    ids=str,
)
def test_what_was_never_begun_is_always_asked_again(reply: Reply) -> None:
    assert len(waits_before(iter([reply, OK]), TELL)) == 2


@pytest.mark.parametrize(
    "reply",
    [refused(502), broken(httpx.ReadError), broken(httpx.WriteError), broken(httpx.RemoteProtocolError)],
    ids=str,
)
def test_what_may_have_been_done_is_asked_again_only_where_that_changes_nothing(reply: Reply) -> None:
    assert len(waits_before(iter([reply, OK]), ASK)) == 2
    with pytest.raises(errors.QGuideError):
        waits_before(iter([reply, OK]), TELL)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (refused(400, "history_too_long"), errors.HistoryTooLongError),
        (refused(400, "new_in_a_later_server"), errors.InvalidRequestError),
        (refused(401, "unauthorized"), errors.UnauthorizedError),
        (refused(403, "forbidden"), errors.ForbiddenError),
        (refused(404, "unknown_model"), errors.UnknownModelError),
        (refused(504, "upstream_timeout"), errors.UpstreamFailedError),
        (refused(500, "internal_error"), errors.ServerFailedError),
        (refused(418), errors.RefusedError),
        (refused(307), errors.RefusedError),
        (broken(httpx.ReadTimeout), errors.TimedOutError),
        (broken(httpx.UnsupportedProtocol), errors.UnreachableError),
    ],
)
def test_what_would_only_fail_again_is_raised_at_once(reply: Reply, kind: type[errors.QGuideError]) -> None:
    replies = iter([reply, OK])
    with pytest.raises(kind) as caught:
        waits_before(replies)
    assert type(caught.value) is kind
    assert next(replies) is OK


@pytest.mark.parametrize(
    ("code", "kind"),
    [("scorer_unavailable", errors.ScorerUnavailableError), ("deadline_exceeded", errors.DeadlineExceededError)],
)
def test_the_last_refusal_is_raised_with_all_that_was_said(code: str, kind: type[errors.RefusedError]) -> None:
    last = refused(503, code, retry_after="1", x_request_id="r1")
    with pytest.raises(kind) as caught:
        waits_before(repeat(last))
    error = caught.value
    assert (error.status, error.code, error.request_id) == (503, code, "r1")
    assert error.retry_after_s == 1
    assert str(error) == "not now (request r1)"


def test_silence_is_told_with_the_address_the_cause_and_our_own_id() -> None:
    with pytest.raises(errors.UnreachableError) as caught:
        waits_before(repeat(broken(httpx.ConnectError)))
    assert caught.value.request_id == "r0"
    assert "POST http://qguide.test/v1/act cannot be reached (it broke)" in str(caught.value)
    assert isinstance(caught.value.__cause__, httpx.ConnectError)


def test_a_proxys_error_page_is_no_riddle() -> None:
    page = httpx.Response(502, html="<h1>Bad Gateway</h1>", request=REQUEST)
    with pytest.raises(errors.UnavailableError, match="HTTP 502 Bad Gateway from /v1/act"):
        waits_before(repeat(page))


def test_an_answer_of_something_else_is_no_answer() -> None:
    with (
        client_of(lambda _: httpx.Response(200, html="<h1>Welcome</h1>")) as client,
        pytest.raises(errors.UnreadableAnswerError, match=r"GET /readyz .*base_url"),
    ):
        client.ready()


def test_an_answer_that_lacks_a_field_says_which() -> None:
    with pytest.raises(errors.UnreadableAnswerError, match="status: Field required"):
        ASK.read(b"{}")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("3", 3.0),
        (format_datetime(datetime.fromtimestamp(1030, UTC), usegmt=True), 30.0),
        (format_datetime(datetime.fromtimestamp(10, UTC), usegmt=True), 0.0),
        ("soon", None),
        ("-3", None),
        ("²", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, now_s=1000) == seconds


def _failing_once() -> Callable[[httpx.Request], httpx.Response]:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["x-request-id"])
        assert len(set(seen)) == 1, "one question has one id"
        if len(seen) == 1:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(200, json={"status": "ok"})

    return answer


def test_the_client_drives_the_conversation() -> None:
    with client_of(_failing_once()) as client:
        assert client.ready()


async def test_the_async_client_drives_it_too() -> None:
    transport = httpx.MockTransport(_failing_once())
    async with AsyncQGuide("http://qguide.test", retry=AT_ONCE, transport=transport) as client:
        assert await client.ready()


def test_a_server_that_is_not_ready_says_why() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503, json={"status": "unavailable", "reason": "a thread is dead"})

    with client_of(answer) as client:
        readiness = client.ready()
    assert not readiness
    assert readiness.reason == "a thread is dead"


def test_the_key_travels_as_a_bearer_and_a_path_before_ours_is_kept() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer qg_secret"
        assert str(request.url) == "http://qguide.test/agents/readyz"
        return httpx.Response(200, json={"status": "ok"})

    client = QGuide("http://qguide.test/agents", api_key="qg_secret", transport=httpx.MockTransport(answer))
    with client:
        assert client.ready()
    assert "qg_secret" not in repr(vars(client))


def test_nobody_listening_is_unreachable() -> None:
    with (
        QGuide("http://127.0.0.1:9", retry=AT_ONCE) as client,
        pytest.raises(errors.UnreachableError, match=r"http://127\.0\.0\.1:9/readyz .*base_url"),
    ):
        client.ready()


def test_a_server_that_hangs_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            QGuide(address, timeout_s=0.2) as client,
            pytest.raises(errors.TimedOutError, match=r"raise timeout_s or deadline_s"),
        ):
            client.ready()


def test_every_error_can_be_imported_from_the_package() -> None:
    kinds = [one for one in vars(errors).values() if isinstance(one, type)]
    assert len(kinds) > 20
    assert [kind.__name__ for kind in kinds if kind.__name__ not in qguide_client.__all__] == []
