"""Rewards that are none fail their task, and servers that never end an answer cost little."""

import contextlib
import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse
from rich.console import Console

from qguide.qnet.errors import EnvironmentFailureError
from qguide.qnet.records import TreeRow
from qguide.training.data.runs import read_rows
from qguide.training.environment import Environment, StepResult, flag_of, take
from qguide.training.environments.registry import build_selected_suite, environment_config
from qguide.training.exploration.tree_expansion import Exploration
from qguide.training.jobs.explore import ExploreConfig, run_explore
from tests.support.own_environments import BadReward
from tests.support.presser import Presser
from tests.support.serving import serving_app

BAD = {
    "a text": ('"one"', "'one'"),
    "a number in a text": ('"1"', "'1'"),
    "a list": ("[1.0]", "[1.0]"),
    "400 digits": ("1" * 400, "a number of 1326 bits"),
    "no number": ("NaN", "nan"),
    "infinity": ("1e999", "inf"),
}
"""JSON of a reward, and what the message shows of it."""


def episode(name: str, **table: object) -> Environment:
    suite = build_selected_suite(environment_config({"name": name, "count": 2, **table}))
    return suite.make(suite.tasks[1])


@pytest.mark.parametrize(("value", "shown"), BAD.values(), ids=BAD)
def test_a_bad_reward_of_a_factory_is_shown(value: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BadReward, "value", json.loads(value))
    with closing(episode("tests.support.own_environments:BadReward")) as lamp:
        lamp.reset()
        assert lamp.step("look").reward == 0.0
        with pytest.raises(EnvironmentFailureError, match=rf"reward .*{re.escape(shown)}; .*finite"):
            lamp.step("press 1")


@pytest.mark.parametrize(("value", "shown"), BAD.values(), ids=BAD)
def test_a_bad_reward_of_an_agentgym_server_is_shown(value: str, shown: str) -> None:
    answer = f'{{"id": 1, "observation": "dark", "reward": {value}, "done": false}}'
    with agentgym(lambda _: Response(answer, media_type="application/json")) as lamp:
        lamp.reset()
        with pytest.raises(EnvironmentFailureError, match=rf"reward .*{re.escape(shown)}; .*finite"):
            lamp.step("look")


@pytest.mark.parametrize(("value", "shown"), BAD.values(), ids=BAD)
def test_a_bad_reward_of_an_openenv_server_is_shown(value: str, shown: str) -> None:
    data = '{"observation": {"text": "dark"}, "done": false, "reward": %s}'
    with openenv([data % "null", data % value]) as lamp:
        lamp.reset()
        with pytest.raises(EnvironmentFailureError, match=rf"reward .*{re.escape(shown)}; .*finite"):
            lamp.step("look")


NO_FLAGS = {"a text": ('"false"', "'false'"), "a number": ("0", "0"), "a list": ("[]", "[]")}
"""JSON of a flag that is none, and what the message shows of it."""


@pytest.mark.parametrize(("value", "shown"), NO_FLAGS.values(), ids=NO_FLAGS)
def test_an_agentgym_server_says_done_by_true_or_false(value: str, shown: str) -> None:
    """The text "false" counted as true and ended the episode."""
    answer = f'{{"id": 1, "observation": "dark", "reward": 0, "done": {value}}}'
    with agentgym(lambda _: Response(answer, media_type="application/json")) as lamp:
        lamp.reset()
        with pytest.raises(EnvironmentFailureError, match=rf"done .*{re.escape(shown)}; .*true"):
            lamp.step("look")


@pytest.mark.parametrize(("value", "shown"), NO_FLAGS.values(), ids=NO_FLAGS)
def test_an_openenv_server_says_done_by_true_or_false(value: str, shown: str) -> None:
    data = '{"observation": {"text": "dark"}, "done": %s}'
    with openenv([data % "null", data % value]) as lamp:
        lamp.reset()
        with pytest.raises(EnvironmentFailureError, match=rf"done .*{re.escape(shown)}; .*true"):
            lamp.step("look")


@pytest.mark.parametrize("flags", [("no", False, {}), (False, "no", {}), (False, False, "no")])
def test_a_factory_says_by_true_or_false_that_the_episode_is_over(
    flags: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminated, truncated, valid = flags
    said = ("dark", 0.0, terminated, truncated, {"valid": valid} if valid == "no" else {})
    monkeypatch.setattr(BadReward, "step", lambda self, action: said)
    with closing(episode("tests.support.own_environments:BadReward")) as lamp:
        lamp.reset()
        with pytest.raises(EnvironmentFailureError, match=r"'no'; .*true .*false"):
            lamp.step("look")


def test_flags_of_numpy_are_flags_and_a_missing_one_is_false() -> None:
    assert flag_of(np.bool_(True), "done") is True
    assert flag_of(np.bool_(False), "done") is False
    assert flag_of(None, "done") is False


def test_a_bad_reward_fails_its_task_and_the_others_are_explored(tmp_path: Path) -> None:
    table = {"name": "tests.support.own_environments:BadReward", "count": 3, "harmless": "look"}
    config = ExploreConfig(
        output=tmp_path,
        environment=environment_config(table),
        exploration=Exploration(max_steps=4, max_draws=5, depth=3, stop_on_zero=False),
    )
    run_explore(config, policy=Presser(), console=Console(file=StringIO()))
    trees = list(read_rows(tmp_path / "rows.jsonl", TreeRow))
    assert {tree.task_id for tree in trees} == {"task:0", "task:2"}
    metrics = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    [failed] = [row for row in metrics if "error" in row]
    assert failed == {"task_id": "task:1", "error": "a reward is 'one'; give a finite number"}


def test_a_bad_reward_of_an_environment_of_ones_own_is_shown() -> None:
    class Own:
        def step(self, action: str) -> StepResult:
            return StepResult("dark", action, terminated=False)  # type: ignore[arg-type]

    with pytest.raises(EnvironmentFailureError, match=r"reward .*'press'; .*finite"):
        take(Own(), "press")  # type: ignore[arg-type]


def drips() -> Iterator[bytes]:
    while True:
        yield b" "
        time.sleep(0.1)


def flood() -> Iterator[bytes]:
    while True:
        yield b" " * 2**20


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda: StreamingResponse(drips()), "1 s; .*timeout_s"),
        (lambda: StreamingResponse(flood()), "16,777,216 bytes"),
        (lambda: Response(gzip.compress(bytes(2**25)), headers={"content-encoding": "gzip"}), "16,777,216 bytes"),
        (lambda: Response("[" + "1," * 2**20 + "1]", media_type="application/json"), "1,000,000 JSON"),
        (lambda: Response("5", media_type="application/json"), "/step .* 5, .*object"),
    ],
    ids=["drips", "flood", "bomb", "many values", "no object"],
)
def test_an_answer_of_an_agentgym_server_is_bounded(answer: Callable[[], Response], message: str) -> None:
    with agentgym(lambda _: answer(), timeout_s=1.0 if "1 s" in message else 60.0) as lamp:
        lamp.reset()
        with pytest.raises(EnvironmentFailureError, match=message):
            lamp.step("look")


def test_the_head_of_an_answer_is_bounded_as_well() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        stopped = threading.Event()

        def drip() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while not stopped.wait(0.1):
                    connection.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        lamp = episode(f"agentgym:http://127.0.0.1:{server.getsockname()[1]}", timeout_s=1.0)
        with pytest.raises(EnvironmentFailureError, match=r"1 s; .*timeout_s"):
            lamp.reset()
        stopped.set()
        thread.join()
        lamp.close()


def test_an_answer_of_an_openenv_server_is_bounded() -> None:
    start, many = '{"observation": {"text": "dark"}}', "[" + "1," * 2**20 + "1]"
    with openenv([start, many]) as lamp:
        lamp.reset()
        with pytest.raises(EnvironmentFailureError, match="1,000,000 JSON"):
            lamp.step("look")
    with openenv([start], timeout_s=1.0) as lamp:
        lamp.reset()
        with pytest.raises(EnvironmentFailureError, match=r"1 s; .*timeout_s"):
            lamp.step("look")
    with openenv([start, '"' + "x" * 2**25 + '"']) as lamp:
        lamp.reset()
        with pytest.raises(EnvironmentFailureError, match=r"1009 .* 16777216 bytes"):
            lamp.step("look")


@contextmanager
def agentgym(step: Callable[[dict[str, Any]], Response], **table: object) -> Iterator[Environment]:
    """An episode of an AgentGym server that answers steps as told."""
    server = FastAPI()
    server.post("/create")(lambda: {"id": 1})
    server.post("/reset")(lambda: {"id": 1, "observation": "It is dark."})
    server.post("/close")(lambda: {"closed": True})

    @server.post("/step")
    def take(body: dict[str, Any]) -> Response:
        return step(body)

    with serving_app(server) as url, closing(episode(f"agentgym:{url}", **table)) as lamp:
        yield lamp


@contextmanager
def openenv(answers: list[str], **table: object) -> Iterator[Environment]:
    """An episode of an OpenEnv server that gives these answers in turn."""
    server = FastAPI()

    @server.websocket("/ws")
    async def session(socket: WebSocket) -> None:
        await socket.accept()
        for data in answers:
            await socket.receive_json()
            await socket.send_text(f'{{"type": "observation", "data": {data}}}')
        with contextlib.suppress(WebSocketDisconnect):
            while True:  # and then says nothing more
                await socket.receive_json()

    with serving_app(server, ws="websockets-sansio") as url, closing(episode(f"openenv:{url}", **table)) as lamp:
        yield lamp
