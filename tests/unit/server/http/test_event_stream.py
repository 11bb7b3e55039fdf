"""A stream and its work end together, whenever the caller goes."""

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.qnet.types import Candidate, History, Sampling
from qguide.server.app import create_app
from tests.unit.server.conftest import FAKES, models_of

BODY = {"messages": [{"role": "user", "content": "look"}], "stream": True, "qguide": {"episode_id": "e"}}
SCOPE: dict[str, Any] = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "method": "POST",
    "path": "/v1/chat/completions",
    "raw_path": b"/v1/chat/completions",
    "query_string": b"",
    "headers": [(b"content-type", b"application/json")],
    "client": ("127.0.0.1", 1),
    "server": ("127.0.0.1", 2),
    "scheme": "http",
}


class Hanging:
    """A policy that draws until it is cancelled."""

    name = "hanging"

    def __init__(self) -> None:
        self.drawing = asyncio.Event()
        self.cancelled = False

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Nothing, ever."""
        self.drawing.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return []


@pytest.mark.parametrize(
    ("heartbeat_s", "goes"), [(3600, "before the first byte"), (0.01, "at the first byte"), (0.01, "at a sign of life")]
)
async def test_a_caller_who_goes_takes_the_work_along(heartbeat_s: float, goes: str) -> None:
    policy, gone = Hanging(), asyncio.Event()
    settings = FAKES.model_copy(update={"heartbeat_s": heartbeat_s})
    scorer, thread = ScriptedScorer({}), DeviceThread()
    app = create_app(settings, build=lambda _: models_of(policy, scorer, thread))
    unread = [{"type": "http.request", "body": json.dumps(BODY).encode(), "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await policy.drawing.wait()
        if goes != "before the first byte":
            await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        first = message["type"] == "http.response.start"
        if first == (goes == "at the first byte"):
            gone.set()
            await asyncio.sleep(3600)  # nobody reads what is sent

    async with app.router.lifespan_context(app), asyncio.timeout(30):
        await app({**SCOPE, "app": app, "state": {}}, receive, send)
        # At once, not some time later: the caller's place is already another's.
        assert policy.cancelled
        assert await app.state.episodes.begin_step("e") is None
