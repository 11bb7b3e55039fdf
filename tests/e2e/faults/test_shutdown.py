"""The end of a server: no request is lost, and what its time limit cuts off is told."""

import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import pytest
from websockets.sync.client import connect

from qguide.server.app import create_app
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.settings.remote_models import Upstream
from tests.support.gated_scorer import CHAT, END_S, USER, stream_of
from tests.support.serving import serving_app, serving_process
from tests.support.tiny_models import save_policy
from tests.unit.server.conftest import FAKES


def test_sigterm_under_load_loses_no_request(tmp_path: Path) -> None:
    statuses: list[int] = []
    refused: list[httpx.Response] = []
    lost: list[str] = []
    stop = threading.Event()

    def ask(url: str) -> None:
        with httpx.Client(base_url=url, timeout=END_S) as client:
            while not stop.is_set():
                try:
                    answer = client.post("/v1/act", json={"messages": [USER], "num_candidates": 3})
                except httpx.ConnectError:
                    return  # the door is closed, and it was said before
                except httpx.TransportError as error:
                    lost.append(repr(error))
                    return
                statuses.append(answer.status_code)
                if answer.status_code != 200:
                    refused.append(answer)
                    return

    variables = {"QGUIDE_DRAIN_DELAY_S": "1"}
    with serving_process(tmp_path, environment=variables) as server:
        callers = [threading.Thread(target=ask, args=(server.url,)) for _ in range(8)]
        for caller in callers:
            caller.start()
        deadline = time.monotonic() + END_S
        while len(statuses) < 40 and time.monotonic() < deadline:
            time.sleep(0.02)
        server.process.send_signal(signal.SIGTERM)
        for caller in callers:
            caller.join(END_S)
        stop.set()
        # The light is red and the door still open; health is the last that answers.
        ready = httpx.get(f"{server.url}/readyz", timeout=END_S)
        assert (ready.status_code, "shutting down" in ready.text) == (503, True)
        assert httpx.get(f"{server.url}/healthz", timeout=END_S).status_code == 200
        assert server.process.wait(END_S) in (0, -signal.SIGTERM)
    assert lost == []
    assert statuses.count(200) >= 40
    assert set(statuses) == {200, 503}
    for answer in refused:
        assert answer.json()["error"]["code"] == "draining"
        assert int(answer.headers["retry-after"]) >= 1
    assert "Traceback" not in server.log.read_text()


def test_requests_are_served_during_the_delay_and_a_second_signal_ends_it(tmp_path: Path) -> None:
    variables = {"QGUIDE_DRAIN_DELAY_S": "600"}
    asked = {"messages": [USER], "candidates": ["go", "stay"]}
    with (
        serving_process(tmp_path, environment=variables) as server,
        httpx.Client(base_url=server.url, timeout=END_S) as client,
    ):
        server.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + END_S
        while client.get("/readyz").status_code == 200 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert client.get("/readyz").status_code == 503
        assert client.post("/v1/score", json=asked).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(END_S) in (0, -signal.SIGTERM)


def test_sigterm_lets_a_slow_request_end(tmp_path: Path) -> None:
    fake = FakeUpstream(together=1000)  # it answers none until it is told to
    with serving_app(fake.app()) as behind, ThreadPoolExecutor(1) as pool:
        upstreams = {"slow": {"url": f"{behind}/v1", "model": "m"}}
        variables = {"QGUIDE_DRAIN_DELAY_S": "0", "QGUIDE_UPSTREAMS": json.dumps(upstreams)}
        with serving_process(tmp_path, environment=variables) as server:
            body = {"messages": [USER], "policy": "slow", "num_candidates": 3}
            slow = pool.submit(httpx.post, f"{server.url}/v1/act", json=body, timeout=END_S)
            _until(lambda: bool(fake.asked))
            server.process.send_signal(signal.SIGTERM)
            _until(lambda: not _listens(server.url))
            assert not slow.done()
            fake.together = 0
            answer = slow.result(END_S)
            assert answer.status_code == 200, answer.text
            assert len(answer.json()["candidates"]) == 3
            assert server.process.wait(END_S) in (0, -signal.SIGTERM)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _listens(url: str) -> bool:
    with suppress(OSError), socket.create_connection((httpx.URL(url).host, httpx.URL(url).port)):
        return True
    return False


async def test_sigterm_lets_a_stream_end(tmp_path: Path) -> None:
    # The embedded policy is slow enough to be caught in the middle.
    arguments = ("--policy", "embedded")
    variables = {"QGUIDE_DRAIN_DELAY_S": "0", "QGUIDE_HEARTBEAT_S": "0.05"}
    body = stream_of("look") | {"max_tokens": 200, "temperature": 3}
    body["qguide"] = {"num_candidates": 24}
    with serving_process(tmp_path, *arguments, environment=variables) as server:
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=END_S) as client,
            client.stream("POST", CHAT, json=body) as answer,
        ):
            lines = answer.aiter_lines()
            assert await anext(lines) == ": still working"
            server.process.send_signal(signal.SIGTERM)
            said = [line async for line in lines if line.startswith("data: ")]
        assert answer.status_code == 200
        assert said[-1] == "data: [DONE]"
        assert len(json.loads(said[-2][len("data: ") :])["qguide"]["q_values"]) == 24
        assert server.process.wait(END_S) in (0, -signal.SIGTERM)


Answer = TypeVar("Answer")


def cut_off(ask: Callable[[str], Answer]) -> Answer:
    """The answer of a server that shuts down while an upstream is silent."""
    fake = FakeUpstream(fault="hang")
    with serving_app(fake.app()) as behind, ThreadPoolExecutor() as pool:
        slow = Upstream.model_validate({"url": f"{behind}/v1", "model": "m"})
        more = {"upstreams": {"slow": slow}, "shutdown_timeout_s": 1, "heartbeat_s": 0.1}
        app = create_app(FAKES.model_copy(update=more))
        with serving_app(app) as url:
            waiting = pool.submit(ask, url)
            patience = time.monotonic() + END_S
            while not fake.asked and time.monotonic() < patience:
                time.sleep(0.05)
            app.state.drain.draining = True  # as SIGTERM does
        return waiting.result(END_S)


def test_a_request_cut_off_by_the_shutdown_is_503() -> None:
    body = {"messages": [USER], "policy": "slow"}
    answer = cut_off(lambda url: httpx.post(f"{url}/v1/act", json=body, timeout=END_S))
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "draining"
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["x-request-id"] == answer.json()["error"]["request_id"]


@pytest.mark.parametrize(("path", "named"), [(CHAT, []), ("/v1/messages", ["event: error"])])
def test_a_stream_cut_off_by_the_shutdown_ends_with_an_error(path: str, named: list[str]) -> None:
    body = stream_of("look") | {"model": "slow", "max_tokens": 8}
    answer = cut_off(lambda url: httpx.post(f"{url}{path}", json=body, timeout=END_S))
    assert answer.status_code == 200
    *before, last = answer.text.strip().split("\n\n")[-1].splitlines()
    assert before == named
    error = json.loads(last.removeprefix("data: "))["error"]
    assert "draining" in (error.get("code"), error.get("details", {}).get("error_code"))


def test_a_response_cut_off_by_the_shutdown_is_an_error_over_a_websocket() -> None:
    def ask(url: str) -> Any:
        with connect(f"ws{url.removeprefix('http')}/v1/responses") as connection:
            body = {"type": "response.create", "model": "slow", "input": "look"}
            connection.send(json.dumps(body))
            told = [json.loads(connection.recv(END_S))]
            while told[-1]["type"].startswith("response."):
                told.append(json.loads(connection.recv(END_S)))
            return told[-1]

    last = cut_off(ask)
    assert (last["type"], last["status"]) == ("error", 503)
    assert last["error"]["code"] == "draining"


LOOPS_AT_A_WORD = (
    "{% for m in messages %}{% if 'abracadabra' in m['content'] %}"
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
    "{{ m['role'] }}: {{ m['content'] }}{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def test_sigterm_ends_a_server_whose_chat_template_never_does(tmp_path: Path) -> None:
    folder = save_policy(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(LOOPS_AT_A_WORD)
    limits = {"QGUIDE_DRAIN_DELAY_S": "0", "QGUIDE_SHUTDOWN_TIMEOUT_S": "1"}
    with (
        serving_process(tmp_path, "--policy", str(folder), environment=limits) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        body = {"messages": [USER | {"content": "abracadabra"}], "num_candidates": 1}
        asked = pool.submit(_hung_up_on, f"{server.url}/v1/act", body)
        used = psutil.Process(server.process.pid).cpu_times().user
        deadline = time.monotonic() + END_S
        while psutil.Process(server.process.pid).cpu_times().user < used + 0.4:  # it loops
            assert time.monotonic() < deadline
            time.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(END_S) == 1
        assert asked.result()
    said = server.log.read_text()
    assert "Timeout (" in said
    assert "chat_template" in said  # which function was stuck
    assert "abracadabra" not in said


def _hung_up_on(url: str, body: dict[str, object]) -> bool:
    """True if the server did not answer with a 200."""
    try:
        return httpx.post(url, json=body, timeout=END_S).status_code != 200
    except httpx.TransportError:
        return True
