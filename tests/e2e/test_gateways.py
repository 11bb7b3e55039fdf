"""Software that asks for Q as the page on gateways shows, unmodified and in its own environments.

`make test-gateways` installs tests/clients/gateways.txt and LiteLLM with its proxy; GATEWAYS_PYTHON
and QGUIDE_LITELLM_PYTHON name their Pythons, GATEWAYS_ENVOY the program of Envoy, GATEWAYS_NEWER a folder
with an environment of Python 3.12 for each package of tests/clients/gateways-3.12.txt.
"""

import json
import os
import re
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from qguide.server.app import create_app
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.documents import blocks_of
from tests.support.serving import ROOT, START_S, free_port, serving_app

PAGE = "docs/connect/gateways.md"
PYTHON = os.environ.get("GATEWAYS_PYTHON", "")
LITELLM_PYTHON = os.environ.get("QGUIDE_LITELLM_PYTHON", "")
ENVOY = os.environ.get("GATEWAYS_ENVOY", "")
NEWER = os.environ.get("GATEWAYS_NEWER", "")
BEST = "Action: go to desk 1"
THERE = "http://127.0.0.1:8000"
needs_python = pytest.mark.skipif(not PYTHON, reason="GATEWAYS_PYTHON names no Python")
needs_litellm = pytest.mark.skipif(
    not LITELLM_PYTHON, reason="QGUIDE_LITELLM_PYTHON names no Python with LiteLLM's proxy"
)
needs_envoy = pytest.mark.skipif(not ENVOY, reason="GATEWAYS_ENVOY names no program")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving_app(create_app(Settings(policy=SCRIPTED, q_models={"q": SCRIPTED}))) as url:
        yield url


def block(word: str, url: str) -> str:
    """The page's Python block with a word, for another address of the server."""
    [text] = [b.text for b in blocks_of(PAGE) if b.language == "python" and word in b.text]
    return text.replace(THERE, url)


def environment() -> dict[str, str]:
    client = str(ROOT / "clients" / "python" / "src")
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1"}
    return os.environ | offline | {"PYTHONPATH": client}


def said_by(python: str, script: str) -> str:
    """The last line that a script prints."""
    done = subprocess.run(
        [python, "-c", script], env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


LITELLM = """
import asyncio
import litellm


async def main():
    messages = [{"role": "user", "content": "find the mug"}]
    asked = {"model": "openai/demo", "api_base": UPSTREAM, "api_key": "any", "messages": messages}
    drawn = await litellm.acompletion(**asked, n=5)
    print((await best_of(messages, drawn.choices)).message.content)


asyncio.run(main())
"""


@needs_litellm
def test_litellm_takes_the_best_of_its_completions(url: str) -> None:
    with serving_app(FakeUpstream().app()) as behind:
        script = f"UPSTREAM = {behind + '/v1'!r}\n{block('BestOfFive', url)}{LITELLM}"
        assert said_by(LITELLM_PYTHON, script) == BEST


@needs_litellm
def test_litellms_proxy_answers_with_the_best_by_the_callback(url: str, tmp_path: Path) -> None:
    fake = FakeUpstream()
    [config] = re.findall("`(litellm_settings: .*)`", (ROOT / PAGE).read_text())
    (tmp_path / "qguide_callback.py").write_text(block("BestOfFive", url))
    port = free_port()
    root, key = f"http://127.0.0.1:{port}", f"sk-{secrets.token_hex(16)}"
    headers = {"Authorization": f"Bearer {key}"}
    body: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "find the mug"}]}
    with serving_app(fake.app()) as behind:
        given = {"model": "openai/fake", "api_base": f"{behind}/v1", "api_key": "any"}
        models = json.dumps([{"model_name": "demo", "litellm_params": given}])
        (tmp_path / "config.yaml").write_text(f"{config}\nmodel_list: {models}\n")
        program = str(Path(LITELLM_PYTHON).parent / "litellm")
        command = [program, "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
        with (
            (tmp_path / "proxy.log").open("wb") as log,
            subprocess.Popen(
                command, cwd=tmp_path, env=environment() | {"LITELLM_MASTER_KEY": key}, stdout=log, stderr=log
            ) as proxy,
        ):
            try:
                until = time.monotonic() + START_S
                while not _answers(f"{root}/health/liveliness"):
                    said = (tmp_path / "proxy.log").read_text()
                    assert proxy.poll() is None, said
                    assert time.monotonic() < until, said
                    time.sleep(0.5)
                with httpx.Client(base_url=root, headers=headers, timeout=60) as client:
                    asked = client.post("/v1/chat/completions", json=body).json()
                    body |= {"stream": True}
                    streamed = client.post("/v1/chat/completions", json=body).text
            finally:
                proxy.terminate()
    [choice] = asked["choices"]
    assert (choice["index"], choice["message"]["content"].endswith(BEST)) == (0, True)
    assert streamed.rstrip().endswith("data: [DONE]")
    assert [one.get("n") for one in fake.asked] == [5, None]


def _answers(address: str) -> bool:
    try:
        return httpx.get(address).is_success
    except httpx.TransportError:
        return False


VERIFIERS = """
import asyncio

from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import AgentInfo, TraceTask


async def main():
    data = vf.TaskData(prompt="find the mug", idx=0)
    task = GuidedTask(data, vf.TaskConfig())
    turns = [vf.UserMessage(content="find the mug"), vf.AssistantMessage(content="Action: look")]
    nodes = [
        MessageNode(message=turn, parent=None if k == 0 else k - 1, sampled=k == 1)
        for k, turn in enumerate(turns)
    ]
    trace = vf.Trace(
        task=TraceTask(type="GuidedTask", data=data),
        agent=AgentInfo(config=vf.AgentConfig()),
        nodes=nodes,
    )
    await task.score(trace)
    print(trace.reward)


asyncio.run(main())
"""


@needs_python
def test_verifiers_takes_q_as_a_reward(url: str) -> None:
    assert said_by(PYTHON, block("vf.reward", url) + VERIFIERS) == "0.25"  # at half its weight


SKYRL = """
env = GuidedEnv()
env.init([{"role": "user", "content": "find the mug"}])
print(env.step("Action: look")["reward"], env.step("Action: go to desk 1")["reward"])
"""


@needs_python
def test_an_environment_of_skyrl_pays_q(url: str) -> None:
    assert said_by(PYTHON, block("def q_of", url) + block("GuidedEnv", url) + SKYRL) == "0.5 0.75"


OPENHANDS = """
from openhands.sdk.event import MessageEvent
from openhands.sdk.llm import Message, TextContent


def turn(role, text, source):
    return MessageEvent(source=source, llm_message=Message(role=role, content=[TextContent(text=text)]))


events = [turn("user", "find the mug", "user"), turn("assistant", "Action: go to desk 1", "agent")]
print(QCritic().evaluate(events).score)
"""
LIGHTNING = """
from agentlightning.schemas import Event, Rollout, RolloutConfig, RolloutLifecycleStatus


class Printed:
    def add_event(self, rollout_id, attempt_id, event_type, data):
        print(rollout_id, attempt_id, event_type, data["value"])


said = {"role": "assistant", "content": "Action: go to desk 1", "token_ids": [1]}
data = {
    "request": {"messages": [{"role": "user", "content": "find the mug"}]},
    "response": {"choices": [{"message": said}]},
}
event = Event(event_type="model_request", rollout_id="r", attempt_id="0", timestamp=0, data=data)
status = RolloutLifecycleStatus(state="succeeded", created_at=0, updated_at=0)
rollout = Rollout(rollout_id="r", input={}, config=RolloutConfig(), status=status)
QReward().on_succeeded(rollout, {"0": [event]}, Printed())
"""
NEMO = """
from unittest.mock import MagicMock

from fastapi.testclient import TestClient
from nemo_gym.base_resources_server import BaseResourcesServerConfig
from nemo_gym.server_utils import ServerClient

config = BaseResourcesServerConfig(host="127.0.0.1", port=1, entrypoint="", name="q", domain="other")
server = GuidedServer(config=config, server_client=MagicMock(spec=ServerClient))
text = {"type": "output_text", "text": "Action: go to desk 1", "annotations": []}
message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
response = {"id": "r", "created_at": 1, "model": "m", "object": "response", "output": [message]}
response |= {"parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
asked = {"input": [{"role": "user", "content": "find the mug"}]}
body = {"responses_create_params": asked, "response": response}
print(TestClient(server.setup_webserver()).post("/verify", json=body).json()["reward"])
"""


@pytest.mark.parametrize(
    ("package", "word", "script", "expected"),
    [
        ("openhands-sdk", "QCritic", OPENHANDS, "0.75"),
        ("agentlightning", "QReward", LIGHTNING, "r 0 reward 0.75"),
        ("nemo-gym", "GuidedServer", NEMO, "0.75"),
    ],
)
def test_trainers_and_critics_of_python_3_12_take_q(
    url: str, package: str, word: str, script: str, expected: str
) -> None:
    python = Path(NEWER) / package / "bin" / "python"
    if not NEWER or not python.exists():
        pytest.skip(f"GATEWAYS_NEWER has no Python with {package}")
    assert said_by(str(python), block("def q_of", url) + block(word, url) + script) == expected


ASKED: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "find the mug"}]}
GUIDED = {"X-QGuide-Num-Candidates": "5"}


@needs_envoy
def test_envoy_guides_what_names_candidates_and_asks_the_model_while_qguide_is_away(tmp_path: Path) -> None:
    [config] = [text for text in of_envoy("yaml") if "aggregate" in text]
    fake, port = FakeUpstream(), free_port()
    with serving_app(fake.app()) as behind, ExitStack() as qguide:
        guide = qguide.enter_context(serving_app(create_app(behind_envoy(port))))
        config = at_ports(config, {"10000": str(port), "8000": guide, "8001": behind})
        with (
            envoy(config, tmp_path, f"http://127.0.0.1:{port}/v1/models"),
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            plain = client.post("/v1/chat/completions", json=ASKED).json()
            assert (fake.asked, "qguide" in plain) == ([ASKED], False)
            guided = guided_by(client)
            assert guided["choices"][0]["message"]["content"].endswith(BEST)
            assert len(guided["qguide"]["q_values"]) == 5
            message = {"max_tokens": 100, "stream": True}
            with client.stream("POST", "/v1/messages", json=ASKED | message, headers=GUIDED) as streamed:
                events = [line for line in streamed.iter_lines() if line.startswith("event: ")]
            assert (events[0], events[-1]) == ("event: message_start", "event: message_stop")
            qguide.close()
            drawn = len(fake.asked)
            alone = client.post("/v1/chat/completions", json=ASKED, headers=GUIDED).json()
            assert (fake.asked[drawn:], "qguide" in alone) == ([ASKED], False)


@needs_envoy
def test_a_filter_of_envoy_answers_with_qguide_and_lets_go_on_what_it_cannot(tmp_path: Path) -> None:
    [config] = [text for text in of_envoy("yaml") if "ext_proc" in text]
    [script] = of_envoy("python")
    fake, port, filtering = FakeUpstream(), free_port(), str(free_port())
    with serving_app(fake.app()) as behind, ExitStack() as qguide:
        guide = qguide.enter_context(serving_app(create_app(behind_envoy(port))))
        script = script.replace(THERE, guide).replace(":9000", f":{filtering}")
        config = at_ports(config, {"10000": str(port), "9000": filtering, "8001": behind})
        with (
            subprocess.Popen([PYTHON, "-c", script]) as process,
            envoy(config, tmp_path, f"http://127.0.0.1:{port}/v1/models"),
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            try:
                guided = guided_by(client)
                assert guided["choices"][0]["message"]["content"].endswith(BEST)
                fake.asked.clear()
                plain = client.post("/v1/chat/completions", json=ASKED).json()
                assert (fake.asked, "qguide" in plain) == ([ASKED], False)
                message = ASKED | {"max_tokens": 100, "stream": True}
                streamed = client.post("/v1/messages", json=message, headers=GUIDED)
                assert streamed.headers["content-type"].startswith("text/event-stream")
                assert streamed.text.rstrip().endswith('{"type": "message_stop"}')
                refused = client.post("/v1/chat/completions", json=ASKED | {"tools": 5}, headers=GUIDED)
                assert refused.status_code == 400
                fake.fault = "429"
                busy = client.post("/v1/chat/completions", json=ASKED, headers=GUIDED)
                assert (busy.status_code, busy.headers["retry-after"]) == (429, "1")
                assert (busy.headers["x-qguide-replica"], "x-request-id" in busy.headers) == ("one", True)
                fake.fault = ""
                qguide.close()
                alone = client.post("/v1/chat/completions", json=ASKED, headers=GUIDED).json()
                assert ("choices" in alone, "qguide" in alone) == (True, False)
            finally:
                process.kill()
            alone = client.post("/v1/chat/completions", json=ASKED, headers=GUIDED).json()
            assert ("choices" in alone, "qguide" in alone) == (True, False)


def guided_by(client: httpx.Client) -> Any:
    """QGuide's answer, once Envoy has found it well, or the filter runs."""
    until = time.monotonic() + START_S
    while "qguide" not in (answer := client.post("/v1/chat/completions", json=ASKED, headers=GUIDED).json()):
        assert time.monotonic() < until, "nothing is guided"
        time.sleep(0.5)
    return answer


def of_envoy(language: str) -> list[str]:
    """The blocks of the page in a language."""
    return [block.text for block in blocks_of("docs/connect/envoy.md") if block.language == language]


def behind_envoy(port: int) -> Settings:
    """QGuide, whose upstream is Envoy."""
    demo = {"url": f"http://127.0.0.1:{port}/v1", "model": "demo", "retries": 0}
    named = {"policy": "demo", "upstreams": {"demo": demo}, "q_models": {"q": SCRIPTED}, "replica": "one"}
    return Settings.model_validate(named)


def at_ports(config: str, ports: dict[str, str]) -> str:
    """The configuration with other ports, each the end of an address."""
    for there, here in ports.items():
        config = config.replace(f"port_value: {there}}}", f"port_value: {here.split(':')[-1]}}}")
    return config


@contextmanager
def envoy(config: str, folder: Path, address: str) -> Iterator[None]:
    """Envoy with this configuration, once something answers at an address behind it."""
    (folder / "envoy.yaml").write_text(config)
    command = [ENVOY, "-c", "envoy.yaml", "--concurrency", "1", "--use-dynamic-base-id"]
    with (
        (folder / "envoy.log").open("wb") as log,
        subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as process,
    ):
        try:
            until = time.monotonic() + START_S
            while not _answers(address):
                said = (folder / "envoy.log").read_text()
                assert process.poll() is None, said
                assert time.monotonic() < until, said
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
