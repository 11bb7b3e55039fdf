"""Server that answers every request with the same bytes, to measure the cost of the client.

Its latency consists of the client's own time, HTTP and the loopback.
"""

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from benchmarks.measurement.processes import child, family, free_port, wait_until_ready

_Receive = Callable[[], Awaitable[dict[str, Any]]]
_Send = Callable[[dict[str, Any]], Awaitable[None]]


@contextmanager
def idle_server(answer: bytes, folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Run the idle server during the block; yields its root URL and its process ids.

    Args:
        answer: JSON of the same size as the answers of the measured server.

    Raises:
        ConfigError: it does not start.
    """
    port, file = free_port(), folder / "answer.json"
    url = f"http://127.0.0.1:{port}"
    file.write_bytes(answer)
    command = [sys.executable, "-m", __name__, str(port), str(file)]
    with child("the idle server", command, log=folder / "idle.log", environment={}) as process:
        with httpx.Client(base_url=url) as http:
            wait_until_ready(process, http, "/")
        yield url, tuple(family(process))


def _serve(port: int, answer: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]

    async def app(scope: dict[str, Any], receive: _Receive, send: _Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    config = uvicorn.Config(app, host="127.0.0.1", port=port, lifespan="off", ws="none", log_config=None)
    uvicorn.Server(config).run()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), Path(sys.argv[2]).read_bytes())
