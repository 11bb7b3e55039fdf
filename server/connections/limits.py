"""Limits of connections, and the table that counts the open ones by address."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol

from server.settings.settings import Settings

_IPV6_NETWORK_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection, and of all together.

    Attributes:
        max_header_bytes: of the request line and all headers.
        max_headers: trailers included.
        head_timeout_s: from the opening, or the first byte of a later request, to the end of the
            head.
        stalled_s: longest time for which a client takes nothing of an answer that waits for it,
            or sends a body that nobody will read.
        keep_alive_s: from an answer to the first byte of the next request.
        max_connections_per_address: an IPv6 client's address is its /64 network.
        max_connections: of all addresses.
    """

    max_header_bytes: int
    max_headers: int
    head_timeout_s: float
    stalled_s: float
    keep_alive_s: float
    max_connections_per_address: int
    max_connections: int


class Connection(Protocol):
    """A connection as the table sees it.

    Attributes:
        address: what it is counted by.
        waiting_since: since when the server has waited for the client, by the loop's clock.
    """

    address: str
    waiting_since: float

    @property
    def is_expendable(self) -> bool:
        """True if no request that has wholly arrived waits for its answer."""

    def evict(self) -> None:
        """Close without a word."""


class ConnectionTable:
    """Open connections; a new one may take the place of one that keeps the server waiting.

    Without that, whoever opens `max_connections_per_address` silent connections would lock out
    everyone behind the same address, a proxy's for instance.

    Args:
        count_closed: counts a connection that the server closed, by the reason.
    """

    def __init__(self, limits: ConnectionLimits, count_closed: Callable[[str], None]) -> None:
        self.limits = limits
        self.count_closed = count_closed
        self._open: dict[Connection, None] = {}  # in the order in which they came
        self._per_address: Counter[str] = Counter()

    def admit(self, connection: Connection) -> bool:
        """Add a connection, after closing another one if need be.

        Returns:
            False if there is no room: every connection that could go is being answered.
        """
        address = connection.address
        if self._per_address[address] >= self.limits.max_connections_per_address:
            has_room = self._evict_one(address)
        elif len(self._open) >= self.limits.max_connections:
            # Of whoever has most: a crowd of few connections each is not the one to blame.
            has_room = any(self._evict_one(other) for other, _ in self._per_address.most_common())
        else:
            has_room = True
        if not has_room:
            return False
        self._open[connection] = None
        self._per_address[address] += 1
        return True

    def remove(self, connection: Connection) -> None:
        """Forget a connection; one that was never admitted is no error."""
        if connection not in self._open:
            return
        del self._open[connection]
        self._per_address[connection.address] -= 1
        if not self._per_address[connection.address]:
            del self._per_address[connection.address]

    def _evict_one(self, address: str) -> bool:
        expendable = self._expendable(address)
        oldest = min(expendable, key=lambda connection: connection.waiting_since, default=None)
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.evict()
        return True

    def _expendable(self, address: str) -> Iterable[Connection]:
        return (one for one in self._open if one.address == address and one.is_expendable)


def limits_of(settings: Settings) -> ConnectionLimits:
    """The operator's limits."""
    return ConnectionLimits(
        max_header_bytes=settings.max_header_bytes,
        max_headers=settings.max_headers,
        head_timeout_s=settings.head_timeout_s,
        stalled_s=settings.body_timeout_s,
        keep_alive_s=settings.keep_alive_s,
        max_connections_per_address=settings.max_connections_per_address,
        max_connections=settings.max_connections,
    )


def network_of(host: str) -> str:
    """What connections are counted by: an IPv4 address, or the /64 that an IPv6 client owns."""
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
