"""Limits of connections: how many an address may open, and how long one may hold the event loop.

Each chunk of a body, and each header, is a call of the parser from C into Python: 256 KiB of chunks of one byte are
40,000 of them, and take a tenth of a second. Connections whose data is very many small pieces take turns.
"""

import asyncio
import json
import uuid
from asyncio import Transport
from collections import Counter, deque
from collections.abc import Callable
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from time import perf_counter
from typing import Final, Protocol

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from qguide.server.settings.settings import Settings

_IPV6_NETWORK_BITS: Final = 64
_BYTES_PER_CHUNK: Final = 1024  # the least that a chunk has on average in a body of the maximum size
_LEAST_CHUNKS: Final = 1_024  # chunks in which every body may arrive, however small `QGUIDE_MAX_BODY_BYTES` is
_REST: Final = 3.0
"""Pause after a turn, as a multiple of its duration: all such connections together get at most a quarter of the event
loop, however many they are."""
_LONGEST_REST_S: Final = 0.1  # limit of the pause, for when the machine itself stood still during a turn


class Connection(Protocol):
    """A connection as the table sees it."""

    address: str  # the client address it is counted under
    waiting_since: float  # loop time since which the server has been waiting for the client

    @property
    def is_expendable(self) -> bool:
        """True if no completely received request is waiting for its answer."""

    def evict(self) -> None:
        """Close without an answer."""


class ConnectionTable:
    """Open connections; a new one may replace one that keeps the server waiting.

    Otherwise a client with `max_connections_per_address` idle connections would lock out everyone behind the same
    address, for example that of a proxy.
    """

    def __init__(self, settings: Settings, count_closed: Callable[[str], None]) -> None:
        self.limits = settings
        self.max_chunks = max(_LEAST_CHUNKS, settings.max_body_bytes // _BYTES_PER_CHUNK)
        self.count_closed = count_closed
        self._open: dict[Connection, None] = {}  # in the order of arrival
        self._per_address: Counter[str] = Counter()

    def admit(self, connection: Connection) -> bool:
        """Add a connection, evicting another one if the table is full; False if all are being answered."""
        address = connection.address
        if self._per_address[address] >= self.limits.max_connections_per_address:
            has_room = self._evict_one(address)
        elif len(self._open) >= self.limits.max_connections:
            # Evict from the address with most connections, rather than from those with few.
            has_room = any(self._evict_one(other) for other, _ in self._per_address.most_common())
        else:
            has_room = True
        if not has_room:
            return False
        self._open[connection] = None
        self._per_address[address] += 1
        return True

    def remove(self, connection: Connection) -> None:
        """Remove a connection; does nothing if it was never admitted."""
        if connection not in self._open:
            return
        del self._open[connection]
        self._per_address[connection.address] -= 1
        if not self._per_address[connection.address]:
            del self._per_address[connection.address]

    def _evict_one(self, address: str) -> bool:
        expendable = (one for one in self._open if one.address == address and one.is_expendable)
        oldest = min(expendable, key=lambda connection: connection.waiting_since, default=None)
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.evict()
        return True


def network_of(host: str) -> str:
    """Address under which a client is counted: its IPv4 address or its IPv6 /64 network."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    host_bits = 128 - _IPV6_NETWORK_BITS
    return str(IPv6Address(int(address) >> host_bits << host_bits))


class LastAnswer(Transport):
    """The transport of an answer after which the connection lingers, where uvicorn would close.

    Closing while a body arrives would reset the connection, and the client might lose the answer.
    """

    def __init__(self, transport: Transport, cycle: RequestResponseCycle) -> None:
        super().__init__()
        self._transport, self._cycle = transport, cycle

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write to the connection."""
        self._transport.write(data)

    def is_closing(self) -> bool:
        """True once the connection ends."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Close if the answer failed; `on_response_complete` ends one that is complete."""
        if not self._cycle.response_complete:
            self._transport.close()


class ParsingTurns:
    """Lets one connection parse some of its data at a time, in order of arrival."""

    def __init__(self, *, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._waiting: deque[Callable[[], None]] = deque()
        self._taken = False

    def add(self, turn: Callable[[], None]) -> None:
        """Call `turn` once it is next; it may add itself again."""
        self._waiting.append(turn)
        if not self._taken:
            self._taken = True
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        if not self._waiting:
            self._taken = False
            return
        began_s = self._clock()
        try:
            self._waiting.popleft()()
        finally:
            rest_s = min(_REST * (self._clock() - began_s), _LONGEST_REST_S)
            asyncio.get_running_loop().call_later(rest_s, self._take)


def raw_error(status: int, code: str, message: str) -> bytes:
    """A complete HTTP error response, for requests that never reach the application."""
    detail = {"code": code, "message": message, "request_id": uuid.uuid4().hex}
    body = json.dumps({"error": detail}).encode()
    head = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    if status == 503:
        head.append("retry-after: 1")
    return "\r\n".join([*head, "", ""]).encode() + body
