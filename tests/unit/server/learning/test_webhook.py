"""Webhook of learning: signed, tried again, and silent about its secret."""

import asyncio
import base64
import hashlib
import hmac
import json

import httpx
import pytest
from structlog.testing import capture_logs

from qguide.qnet.errors import ConfigError
from qguide.server.learning import webhook
from qguide.server.learning.webhook import Webhook, build_webhook, secret_bytes
from qguide.server.settings.settings import Settings

KEY = b"a key of the receiver"
SECRET = "whsec_" + base64.b64encode(KEY).decode()


class Receiver:
    """Answers with these statuses, then with 200."""

    def __init__(self, *statuses: int) -> None:
        self.requests: list[httpx.Request] = []
        self._statuses = list(statuses)

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Answer a request."""
        self.requests.append(request)
        return httpx.Response(self._statuses.pop(0) if self._statuses else 200)

    @property
    def client(self) -> httpx.AsyncClient:
        """Client whose requests arrive here."""
        return httpx.AsyncClient(transport=httpx.MockTransport(self.answer))


async def told(receiver: Receiver, *events: str) -> None:
    """Tell of events, and wait until all are sent or given up."""
    hook = Webhook("http://receiver.example/hook", secret_bytes(SECRET), receiver.client)
    for event in events:
        hook.tell(event, {"reason": "it helps"}, at=7.0)
    while hook.waiting:
        await asyncio.sleep(0)
    await hook.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "_FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(webhook, "_LONGEST_WAIT_S", 0.0)


def test_a_request_is_signed_as_the_standard_says() -> None:
    receiver = Receiver()
    asyncio.run(told(receiver, "learning.guiding"))
    [request] = receiver.requests
    message, moment = request.headers["webhook-id"], request.headers["webhook-timestamp"]
    signed = f"{message}.{moment}.".encode() + request.content
    digest = hmac.new(KEY, signed, hashlib.sha256).digest()
    assert request.headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    body = {"type": "learning.guiding", "timestamp": 7.0, "data": {"reason": "it helps"}}
    assert json.loads(request.content) == body


def test_a_failed_request_is_tried_again_with_the_same_id_and_holds_no_later_event_back() -> None:
    receiver = Receiver(500, 200, 200, 503)
    asyncio.run(told(receiver, "learning.trial_begun", "learning.guiding", "learning.failed"))
    kinds = [json.loads(request.content)["type"] for request in receiver.requests]
    assert kinds[:3] == ["learning.trial_begun", "learning.guiding", "learning.failed"]
    assert kinds[3:] == ["learning.trial_begun"] * 2
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 3


def test_a_full_queue_gives_the_oldest_event_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "_MOST_WAITING", 2)
    receiver = Receiver()
    with capture_logs() as logs:
        asyncio.run(told(receiver, "learning.trial_begun", "learning.guiding", "learning.failed"))
    kinds = [json.loads(request.content)["type"] for request in receiver.requests]
    assert kinds == ["learning.guiding", "learning.failed"]
    assert [entry["reason"] for entry in logs] == ["later ones fill the queue"]


def test_an_event_that_is_never_taken_is_given_up_without_its_address_or_secret() -> None:
    receiver = Receiver(*[500] * 100)
    with capture_logs() as logs:
        asyncio.run(told(receiver, "learning.guiding"))
    assert len(receiver.requests) == 6
    [log] = [entry for entry in logs if entry["event"] == "webhook_not_delivered"]
    assert log == {"event": "webhook_not_delivered", "events": 1, "log_level": "error", "reason": "status 500"}
    assert SECRET not in str(logs)


def test_a_webhook_needs_a_secret() -> None:
    with pytest.raises(ConfigError, match="QGUIDE_LEARN_WEBHOOK_SECRET"):
        build_webhook(Settings.model_validate({"learn_webhook": "http://receiver.example"}))


def test_a_broken_secret_is_told_without_it() -> None:
    with pytest.raises(ConfigError) as raised:
        secret_bytes("whsec_%%%")
    assert "%%%" not in str(raised.value)


def test_a_secret_of_another_kind_is_taken_as_it_is() -> None:
    assert secret_bytes("plain") == b"plain"
