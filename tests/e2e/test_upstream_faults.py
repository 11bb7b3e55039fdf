"""One test per fault of an upstream: what its callers see, and that others are unaffected.

`qguide serve` has two upstreams, each a `qguide fake-upstream` in a process of its own. One of them
fails; meanwhile others use the second one and /v1/score, and get their answers.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from qguide.server.chat.fake_openai import DEFAULT_REPLIES
from tests.support.serving import ForkedProcess, free_port, serving_process

END_S = 60.0
SILENCE_S = 4.0
OPEN_S = 3.0
"""Time in which a test must see that the failed upstream gets no requests."""
FAILURES = 3
USER = {"role": "user", "content": "find the mug"}
SCORE = {"messages": [USER], "candidates": ["go", "stay"]}
BEST = DEFAULT_REPLIES[2]


@dataclass
class Fake:
    """A `qguide fake-upstream` that keeps its port when it is restarted."""

    log: Path
    port: int = field(default_factory=free_port)
    process: ForkedProcess | None = None

    def start(self, *options: str) -> None:
        """Start and wait until it answers."""
        arguments = ["fake-upstream", "--port", str(self.port), *options]
        self.process = ForkedProcess(arguments, os.environ, self.log)
        until(lambda: self.get("/health") is not None)

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def get(self, path: str) -> httpx.Response | None:
        """Its answer, or None if it does not run."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=END_S)
        except httpx.TransportError:
            return None

    def was_asked(self, times: int) -> bool:
        """True if it has received so many requests."""
        answer = self.get("/asked")
        return answer is not None and answer.json()["requests"] >= times


@dataclass(frozen=True)
class Server:
    """The server, and the upstream of it that fails."""

    bad: Fake
    http: httpx.Client

    def ask(self, upstream: str) -> httpx.Response:
        """A guided completion of that upstream."""
        asked = {"model": upstream, "messages": [USER], "qguide": {"num_candidates": 3}}
        return self.http.post("/v1/chat/completions", json=asked)

    def act(self, upstream: str) -> httpx.Response:
        """A guided action of that upstream."""
        asked: dict[str, Any] = {"policy": upstream, "messages": [USER], "num_candidates": 3}
        asked["greedy_candidate"] = False  # it would be a request of its own
        return self.http.post("/v1/act", json=asked)

    def act_as_documented(self, upstream: str) -> httpx.Response:
        """A guided action with the defaults, which sends several requests at the same time."""
        asked = {"policy": upstream, "messages": [USER]}
        return self.http.post("/v1/act", json=asked)

    def score(self) -> httpx.Response:
        """The caller's own candidates, which need no upstream."""
        return self.http.post("/v1/score", json=SCORE)

    def is_back(self) -> bool:
        """True if the failed upstream serves again."""
        answer = self.ask("bad")
        return answer.status_code == 200 and said(answer) == BEST

    def readiness_of(self, upstream: str) -> str:
        """Readiness of an upstream; the server itself stays ready, because others are served."""
        ready = self.http.get("/readyz")
        assert ready.status_code == 200
        line: str = ready.json()["details"][f"upstream {upstream}"]
        return line


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_S
    while not found():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


def said(answer: httpx.Response) -> str:
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


def error_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of an error, which must not reveal the upstream's text or address."""
    assert "it works" not in answer.text
    assert "127.0.0.1" not in answer.text
    if answer.status_code == 503:
        assert int(answer.headers["retry-after"]) >= 1
    return answer.status_code, answer.json()["error"]["code"]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    good, bad = Fake(folder / "good.log"), Fake(folder / "bad.log")
    impatient = {"retries": 0, "timeout_s": SILENCE_S, "breaker_failures": FAILURES, "breaker_open_s": OPEN_S}
    upstreams: dict[str, dict[str, Any]] = {
        "good": {"url": f"http://127.0.0.1:{good.port}/v1", "model": "fake"},
        "bad": {"url": f"http://127.0.0.1:{bad.port}/v1", "model": "fake"} | impatient,
    }
    upstreams["parallel"] = upstreams["bad"] | {"n": "parallel"}
    variables = {"QGUIDE_UPSTREAMS": json.dumps(upstreams)}
    try:
        good.start()
        with (
            serving_process(folder, environment=variables) as server,
            httpx.Client(base_url=server.url, timeout=END_S) as http,
        ):
            yield Server(bad, http)
    finally:
        good.kill()
        bad.kill()


@pytest.fixture
def server(started: Server) -> Iterator[Server]:
    yield started
    started.bad.kill()


@pytest.fixture
def others(server: Server) -> Iterator[None]:
    """Callers of the other upstream and of /v1/score, as long as the test runs."""
    stop = threading.Event()

    def go_on() -> list[tuple[str, float]]:
        seen = []
        while not stop.wait(0.25):
            for answer in (server.ask("good"), server.act("good"), server.score()):
                seen.append((answer.text, answer.elapsed.total_seconds()))
                assert answer.status_code == 200, answer.text
            assert json.loads(seen[-3][0])["choices"][0]["message"]["content"] == BEST
        return seen

    with ThreadPoolExecutor() as pool:
        caller = pool.submit(go_on)
        yield
        stop.set()
        seen = caller.result()
    assert len(seen) >= 3
    assert max(seconds for _, seconds in seen) < END_S, "nobody hangs with the one that fails"


@contextmanager
def together(asks: list[Callable[[], httpx.Response]]) -> Iterator[list["Future[httpx.Response]"]]:
    with ThreadPoolExecutor(len(asks)) as pool:
        yield [pool.submit(ask) for ask in asks]


@pytest.mark.usefixtures("others")
def test_killed_mid_request_and_brought_back(server: Server) -> None:
    server.bad.start("--fault", "hang")
    with together([lambda: server.ask("bad"), lambda: server.act("bad")]) as asked:
        until(lambda: server.bad.was_asked(2))
        assert not any(one.done() for one in asked)
        server.bad.kill()
        for one in asked:
            assert error_of(one.result()) == (503, "upstream_unavailable")
            assert "cannot be reached" in one.result().text
    for _ in range(FAILURES):  # after the first of them none is sent
        assert error_of(server.act("bad")) == (503, "upstream_unavailable")
    assert "no requests sent" in server.readiness_of("bad")
    assert server.readiness_of("good") == "ok"
    server.bad.start()
    until(server.is_back)
    until(lambda: server.readiness_of("bad") == "ok")


@pytest.mark.usefixtures("others")
def test_hanging(server: Server) -> None:
    server.bad.start("--fault", "hang", "--times", str(FAILURES))
    with together([lambda: server.ask("bad")] * 2 + [lambda: server.act("bad")]) as asked:
        for one in asked:
            assert error_of(one.result()) == (504, "upstream_timeout")
            assert SILENCE_S <= one.result().elapsed.total_seconds() < END_S
    # Nobody waits so long once more: it gets no requests for a while, then one, and is well.
    resting = server.ask("bad")
    assert error_of(resting) == (503, "upstream_unavailable")
    assert f"failed 3 times in a row (the last time it was silent for {SILENCE_S:g} s)" in resting.text
    until(server.is_back)


@pytest.mark.usefixtures("others")
def test_answering_garbage(server: Server) -> None:
    server.bad.start("--fault", "garbage", "--times", str(FAILURES))
    for ask in (server.ask, server.act, server.ask):
        answer = ask("bad")
        assert error_of(answer) == (502, "upstream_failed")
        assert "did not answer with a chat completion" in answer.text
    assert error_of(server.act("bad")) == (503, "upstream_unavailable")
    until(server.is_back)


@pytest.mark.usefixtures("others")
def test_too_many_requests(server: Server) -> None:
    server.bad.start("--fault", "429", "--times", str(FAILURES + 2))
    for _ in range(FAILURES + 2):
        answer = server.ask("bad")
        assert error_of(answer) == (429, "rate_limit_exceeded")
        assert "takes no more requests" in answer.text
        assert answer.headers["retry-after"] == "1"
    assert server.is_back(), "who is busy is not left alone"


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("upstream", ["bad", pytest.param("parallel", marks=pytest.mark.slow)])
def test_failing_for_a_while_when_every_action_takes_several_requests(server: Server, upstream: str) -> None:
    server.bad.start("--fault", "500", "--times", "8")
    failed = server.act_as_documented(upstream)
    assert error_of(failed) in ((502, "upstream_failed"), (503, "upstream_unavailable"))
    until(lambda: server.act_as_documented(upstream).status_code == 200)
    until(lambda: server.readiness_of(upstream) == "ok")
