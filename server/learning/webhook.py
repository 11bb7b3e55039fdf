"""Webhook of the operator: changes of learning, signed as standardwebhooks.com says.

    webhook-id: msg_…              the same at every attempt
    webhook-timestamp: 1764000000
    webhook-signature: v1,BASE64   HMAC-SHA256 of "id.timestamp.body" by the secret

Events are sent one after another on a task of their own, so that no request waits for one. One that
is not delivered after several attempts is given up, and told in the log without its address.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import httpx
import stamina
import structlog

from qguide.qnet.errors import ConfigError
from qguide.server.settings.settings import Settings

_PREFIX: Final = "whsec_"
_MOST_WAITING: Final = 1_000
_ATTEMPTS: Final = 6
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 300.0
_TIMEOUT_S: Final = 10.0
_LAST_S: Final = 2.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Message:
    id: str
    body: bytes


class Webhook:
    """Sends events to an address; `tell` may be called on any thread.

    Args:
        secret: key of the signatures.
        client: sends the requests; tests pass their own.
    """

    def __init__(self, url: str, secret: bytes, client: httpx.AsyncClient | None = None) -> None:
        self._url = url
        self._secret = secret
        self._client = client
        self._waiting: deque[_Message] = deque(maxlen=_MOST_WAITING)
        self._due = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sending: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Events that are neither delivered nor given up."""
        return len(self._waiting)

    def start(self) -> None:
        """Begin to send, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._client = self._client or httpx.AsyncClient(timeout=_TIMEOUT_S)
        self._sending = asyncio.create_task(self._send_all())

    def tell(self, event: str, data: Mapping[str, Any], *, at: float | None = None) -> None:
        """Put an event into the queue; the oldest leaves a full one."""
        moment = time.time() if at is None else at
        told = {"type": event, "timestamp": moment, "data": dict(data)}
        message = _Message(f"msg_{secrets.token_hex(16)}", json.dumps(told).encode())
        self._waiting.append(message)
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._due.set)

    async def close(self) -> None:
        """Stop; what waits gets one more moment."""
        if self._sending is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                while self._waiting:
                    await asyncio.sleep(0.01)
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)
        if self._waiting:
            _log.error("webhook_not_delivered", events=len(self._waiting), reason="shutdown")
        if self._client is not None:
            await self._client.aclose()

    async def _send_all(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            while self._waiting:
                message = self._waiting[0]
                await self._send(message)
                with suppress(ValueError):  # a full queue has dropped it
                    self._waiting.remove(message)

    async def _send(self, message: _Message) -> None:
        try:
            async for attempt in stamina.retry_context(
                on=httpx.HTTPError,
                attempts=_ATTEMPTS,
                timeout=None,
                wait_initial=_FIRST_WAIT_S,
                wait_max=_LONGEST_WAIT_S,
                wait_exp_base=4,
            ):
                with attempt:
                    await self._post(message)
        except httpx.HTTPStatusError as error:
            self._given_up(f"status {error.response.status_code}")
        except httpx.HTTPError as error:  # its message may have the address
            self._given_up(type(error).__name__)

    def _given_up(self, reason: str) -> None:
        _log.error("webhook_not_delivered", events=1, reason=reason)

    async def _post(self, message: _Message) -> None:
        assert self._client is not None
        timestamp = str(int(time.time()))
        answer = await self._client.post(
            self._url,
            content=message.body,
            headers={
                "content-type": "application/json",
                "webhook-id": message.id,
                "webhook-timestamp": timestamp,
                "webhook-signature": signature(self._secret, message.id, timestamp, message.body),
            },
        )
        answer.raise_for_status()


def signature(secret: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """Value of the header `webhook-signature`."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.new(secret, signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def secret_bytes(secret: str) -> bytes:
    """The key of a secret: `whsec_` and base64, or any other text as it is.

    Raises:
        ConfigError: it is empty, or what follows `whsec_` is not base64.
    """
    if not secret:
        raise ConfigError(
            "QGUIDE_LEARN_WEBHOOK has no secret; set QGUIDE_LEARN_WEBHOOK_SECRET to that of the receiver (whsec_…)"
        )
    if not secret.startswith(_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error as error:
        raise ConfigError("QGUIDE_LEARN_WEBHOOK_SECRET begins with whsec_, and no base64 follows") from error


def build_webhook(settings: Settings) -> Webhook | None:
    """The webhook of the settings; None without an address.

    Raises:
        ConfigError: it has no secret.
    """
    if settings.learn_webhook is None:
        return None
    secret = settings.learn_webhook_secret
    url = str(settings.learn_webhook)
    return Webhook(url, secret_bytes(secret.get_secret_value() if secret else ""))
