"""The answer that is given before the end of a request's body, and ends its connection."""

from asyncio import Transport

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


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
