"""nginx's consistent hash: the replica that `hash … consistent` chooses for a session."""

import struct
from bisect import bisect_left
from collections.abc import Container, Sequence
from typing import Final
from zlib import crc32

_POINTS: Final = 160
"""Points of each server on the ring, as in nginx for a weight of 1."""


class HashRing:
    """Servers on a ring of 32-bit hashes (Ketama); a session belongs to the next point's server."""

    def __init__(self, servers: Sequence[str]) -> None:
        """Place the servers.

        Args:
            servers: "host:port" as in nginx's configuration.
        """
        points: dict[int, int] = {}
        for number, server in enumerate(servers):
            host, _, port = server.rpartition(":")
            point = 0
            for _ in range(_POINTS):
                point = crc32(f"{host}\0{port}".encode() + struct.pack("<I", point))
                points.setdefault(point, number)
        self._hashes = sorted(points)
        self._servers = [points[point] for point in self._hashes]

    def server_of(self, session: str, *, dead: Container[int] = ()) -> int:
        """Index of the session's server; of its successor on the ring where that is dead."""
        start = bisect_left(self._hashes, crc32(session.encode()))
        for step in range(len(self._servers)):
            server = self._servers[(start + step) % len(self._servers)]
            if server not in dead:
                return server
        raise ValueError("no server is alive")
