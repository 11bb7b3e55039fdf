"""Webhook of the operator: changes of learning, signed as standardwebhooks.com says.

    webhook-id: msg_…              the same at every attempt
    webhook-timestamp: 1764000000
    webhook-signature: v1,BASE64   HMAC-SHA256 of "id.timestamp.body" by the secret

Events are sent one at a time, in the order in which they happen, and no request waits for one. One that fails is sent
again later, and later events do not wait for it. After several attempts it is given up, and told in the log without its
address.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from contextvars import Context
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


class Webhook:
    """Sends events to an address, on the event loop."""

    def __init__(self, url: str, secret: bytes, client: httpx.AsyncClient | None = None) -> None:
        self._url = url
        self._secret = secret
        self._client = client or httpx.AsyncClient(timeout=_TIMEOUT_S)
        self._sending: dict[asyncio.Task[None], None] = {}
        self._turn = asyncio.Lock()

    @property
    def waiting(self) -> int:
        """Events that are neither delivered nor given up."""
        return len(self._sending)

    def tell(self, event: str, data: Mapping[str, Any], *, at: float | None = None) -> None:
        """Send an event; where a thousand wait, the oldest of them is given up."""
        if self.waiting >= _MOST_WAITING:
            oldest = next(iter(self._sending))
            oldest.cancel()
            del self._sending[oldest]
            self._given_up("later ones fill the queue")
        told = {"type": event, "timestamp": time.time() if at is None else at, "data": dict(data)}
        sending = self._send(f"msg_{secrets.token_hex(16)}", json.dumps(told).encode())
        task = asyncio.create_task(sending, context=Context())
        self._sending[task] = None
        task.add_done_callback(lambda sent: self._sending.pop(sent, None))

    async def close(self) -> None:
        """Stop; what waits gets one more moment."""
        if self._sending:
            _, late = await asyncio.wait(self._sending, timeout=_LAST_S)
            if late:
                _log.error("webhook_not_delivered", events=len(late), reason="shutdown")
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._client.aclose()

    async def _send(self, message_id: str, body: bytes) -> None:
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
                    async with self._turn:  # which is first come, first served
                        await self._post(message_id, body)
        except httpx.HTTPStatusError as error:
            self._given_up(f"status {error.response.status_code}")
        except httpx.HTTPError as error:  # its message may have the address
            self._given_up(type(error).__name__)

    def _given_up(self, reason: str) -> None:
        _log.error("webhook_not_delivered", events=1, reason=reason)

    async def _post(self, message_id: str, body: bytes) -> None:
        timestamp = str(int(time.time()))
        answer = await self._client.post(
            self._url,
            content=body,
            headers={
                "content-type": "application/json",
                "webhook-id": message_id,
                "webhook-timestamp": timestamp,
                "webhook-signature": signature(self._secret, message_id, timestamp, body),
            },
        )
        answer.raise_for_status()


def signature(secret: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """Value of the header `webhook-signature`."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.new(secret, signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def secret_bytes(secret: str) -> bytes:
    """The key of a secret: `whsec_` and base64, or any other text as it is."""
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
    """The webhook of the settings; None without an address."""
    if settings.learn_webhook is None:
        return None
    secret = settings.learn_webhook_secret
    url = str(settings.learn_webhook)
    return Webhook(url, secret_bytes(secret.get_secret_value() if secret else ""))
