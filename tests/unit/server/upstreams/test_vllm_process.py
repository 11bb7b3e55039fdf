"""vLLM as a child process, played by a script."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from fastapi.testclient import TestClient
from pydantic import ValidationError

from qguide.qnet.errors import ConfigError
from qguide.server.app import create_app
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import Settings
from qguide.server.upstreams import vllm_process
from qguide.server.upstreams.vllm_process import VllmProcess
from tests.support.scripted_vllm_module import install
from tests.support.serving import lives, processes_with
from tests.unit.server.conftest import FAKES

START_S = 120


@pytest.fixture(autouse=True)
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(install(tmp_path)))


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., VllmProcess]]:
    monkeypatch.setattr(vllm_process, "_FIRST_WAIT_S", 0.05)
    started: list[VllmProcess] = []

    def build(**more: Any) -> VllmProcess:
        given = {"vllm": "a-model", "vllm_python": sys.executable, "vllm_ready_s": START_S}
        started.append(VllmProcess(Settings.model_validate(given | more)))
        return started[-1]

    yield build
    for process in started:
        process.close()


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not found():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def answers(process: VllmProcess) -> bool:
    try:
        return httpx.get(f"{process.url}/health").status_code == 200
    except httpx.TransportError:
        return False


def test_it_answers_its_key_alone_passes_its_log_on_and_ends_with_its_children(
    vllm: Callable[..., VllmProcess],
) -> None:
    with structlog.testing.capture_logs() as logged:
        process = vllm(vllm_arguments=("--max-model-len", "99"))
        process.start()
        upstream = process.upstream()
        assert (upstream.model, str(upstream.url)) == ("vllm", f"{process.url}/v1")
        answer = httpx.post(f"{process.url}/v1/chat/completions", json={"n": 1})
        assert answer.status_code == 401
        process.close()
    lines = [line["line"] for line in logged if line["event"] == "vllm"]
    assert lines[:2] == ["loading a-model", "media of none.invalid"]
    assert "vllm_ready" in [line["event"] for line in logged]
    engine = int(re.findall(r"engine (\d+)", "\n".join(lines))[0])
    assert not answers(process)
    until(lambda: not lives(engine))
    assert not lives(process.pid)


def test_it_is_started_again_when_it_ends(vllm: Callable[..., VllmProcess]) -> None:
    process = vllm()
    process.start()
    first = process.pid
    for starts in (2, 3):
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{process.url}/die")
        until(lambda starts=starts: process.starts == starts and answers(process))  # type: ignore[misc]
    assert process.pid != first


def test_readiness_knows_at_once_that_it_ended_and_when_it_is_back(vllm: Callable[..., VllmProcess]) -> None:
    process = vllm()
    process.start()
    upstreams = {"vllm": process.upstream()}
    settings = FAKES.model_copy(update={"upstreams": upstreams, "vllm": "a-model"})
    with TestClient(create_app(settings, vllm=process), "http://localhost") as client:
        assert client.get("/readyz").status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{process.url}/die")
        until(lambda: process.is_lost)
        lost = client.get("/readyz")
        assert lost.status_code == 503
        assert "is being restarted" in lost.json()["reason"]
        until(lambda: client.get("/readyz").status_code == 200)
    assert (process.starts, process.is_lost) == (2, False)


def test_killed_and_back_it_is_used_again_by_those_who_draw_in_parallel(vllm: Callable[..., VllmProcess]) -> None:
    process = vllm()
    process.start()
    served = process.upstream().model_copy(update={"breaker_open_s": 0.5, "retries": 0})
    upstreams = {"vllm": served}
    settings = FAKES.model_copy(update={"upstreams": upstreams, "policy": "vllm"})
    act = {"messages": [{"role": "user", "content": "look"}]}
    with TestClient(create_app(settings, vllm=process), "http://localhost") as client:
        assert client.post("/v1/act", json=act).status_code == 200
        os.killpg(process.pid, signal.SIGKILL)
        until(lambda: "gets no requests" in client.post("/v1/act", json=act).text)
        until(lambda: process.starts == 2 and answers(process))
        until(lambda: client.post("/v1/act", json=act).status_code == 200)


def test_it_gets_no_secret_of_this_process_but_what_the_operator_names(
    vllm: Callable[..., VllmProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QGUIDE_REDIS_URL", "OPENAI_API_KEY", "HF_TOKEN", "VLLM_API_KEY"):
        monkeypatch.setenv(name, f"the secret of {name}")
    process = vllm(vllm_environment=["HF_TOKEN"])
    process.start()
    family = processes_with(f"--port {process.url.rpartition(':')[2]}")
    assert len(family) == 2, "the guard and what it guards"
    for pid in family:
        inherited = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert [line for line in inherited if b"the secret of" in line] == [b"HF_TOKEN=the secret of HF_TOKEN"]
        assert f"VLLM_API_KEY={process.api_key}".encode() in inherited


def test_one_that_lives_and_does_not_answer_is_started_again(vllm: Callable[..., VllmProcess]) -> None:
    process = vllm(vllm_silent_s=3.0)
    process.start()
    first = process.pid
    with structlog.testing.capture_logs() as logged:
        with suppress(httpx.TransportError):  # it may be ended before it has answered this
            httpx.get(f"{process.url}/hang")
        until(lambda: process.starts == 2 and answers(process))
    [lost] = [line for line in logged if line["event"] == "vllm_lost"]
    assert lost["reason"].startswith("did not answer for ")
    assert not lives(first)
    time.sleep(4.0)
    assert process.starts == 2, "one that answers is left alone"


def test_the_wait_before_a_restart_doubles_up_to_the_longest(
    vllm: Callable[..., VllmProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_process, "_LONGEST_WAIT_S", 0.15)
    process = vllm()
    process.start()
    monkeypatch.setenv("VLLM_PLAYS", "refusal")
    with structlog.testing.capture_logs() as logged:
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{process.url}/die")
        until(lambda: sum(line["event"] == "vllm_lost" for line in logged) >= 4)
    lost = [line for line in logged if line["event"] == "vllm_lost"]
    assert [line["restart_in_s"] for line in lost[:4]] == [0.05, 0.1, 0.15, 0.15]
    assert [line["reason"] for line in lost[:2]] == ["exited with 3", "exited with 1"]


def test_a_machine_without_room_for_a_process_is_asked_again(
    vllm: Callable[..., VllmProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = vllm()
    process.start()
    start = subprocess.Popen
    refused = iter([True, True])

    def full(*given: Any, **more: Any) -> Any:
        if next(refused, False):
            raise BlockingIOError("Resource temporarily unavailable")
        return start(*given, **more)

    monkeypatch.setattr("qguide.server.upstreams.managed_process.subprocess.Popen", full)
    with structlog.testing.capture_logs() as logged:
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{process.url}/die")
        until(lambda: process.starts == 2 and answers(process))
    failed = [line for line in logged if line["event"] == "vllm_not_started"]
    assert [line["reason"] for line in failed] == ["BlockingIOError"] * 2


def test_one_that_ends_while_it_starts_is_explained_in_its_own_words(
    vllm: Callable[..., VllmProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLAYS", "refusal")
    with pytest.raises(ConfigError, match=r"(?s)^vLLM .* 1 .*\nno .*model: a-model"):
        vllm().start()


def test_one_that_never_answers_is_given_up(vllm: Callable[..., VllmProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLAYS", "silence")
    process = vllm(vllm_ready_s=0.5)
    with pytest.raises(ConfigError, match=r"^vLLM .*within 0\.5 s"):
        process.start()
    assert not lives(process.pid)


def test_an_interpreter_that_is_not_there_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set QGUIDE_VLLM_PYTHON"):
        VllmProcess(Settings(vllm="a-model", vllm_python=tmp_path / "python"))


def test_its_name_is_not_given_twice() -> None:
    upstream = Upstream.model_validate({"url": "http://127.0.0.1:1/v1", "model": "m"})
    with pytest.raises(ValidationError, match=r"upstream .*'vllm'"):
        Settings(vllm="a-model", upstreams={"vllm": upstream})
