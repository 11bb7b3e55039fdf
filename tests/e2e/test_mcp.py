"""The MCP SDK's own client with `qguide mcp`, in memory and as a process, against a real server."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import TextContent

from qguide.commands.mcp_tools import tools_of
from qguide.qnet.packages import MCP, PACKAGES
from qguide.server.app import create_app
from qguide.server.http.keys import create_key
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.absent import run_without
from tests.support.serving import START_S, free_port, serving_app

HISTORY = [{"role": "user", "content": "You are in a room. Your task is to: find the mug."}]
CANDIDATES = ["Action: look", {"role": "assistant", "content": "Action: go to desk 1"}]


@dataclass(frozen=True)
class Server:
    """The server's address and its API key."""

    url: str
    key: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    key = create_key(folder / "keys.json", "agent")
    settings = Settings(policy="scripted", q_models={"q": SCRIPTED}, keys_file=folder / "keys.json", timeout_s=30)
    with serving_app(create_app(settings)) as url:
        yield Server(url, key)


async def _call(server: Server, name: str, **arguments: Any) -> Any:
    """A tool's answer; the text of its error."""
    async with Client(tools_of(server.url, server.key)) as client:
        result = await client.call_tool(name, arguments)
    if not result.is_error:
        return result.structured_content
    [told] = result.content
    assert isinstance(told, TextContent)
    return told.text


async def test_the_tools_say_what_they_take(server: Server) -> None:
    async with Client(tools_of(server.url)) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == ["score_candidates", "act", "episode_outcome"]
    assert tools["score_candidates"].input_schema["required"] == ["messages", "candidates"]
    assert tools["act"].input_schema["required"] == ["messages"]
    assert tools["episode_outcome"].input_schema["required"] == ["episode_id", "reward"]


async def test_candidates_get_the_q_that_the_route_gives_them(server: Server) -> None:
    told = await _call(server, "score_candidates", messages=HISTORY, candidates=CANDIDATES)
    q_values = [one["q_value"] for one in told["scores"]]
    assert q_values[0] < q_values[1]
    assert told["chosen"] == 1


async def test_an_episode_is_acted_and_closed_once(server: Server) -> None:
    acted = await _call(server, "act", messages=HISTORY, num_candidates=3, episode_id="a b/1")
    assert acted["action"] == acted["candidates"][acted["chosen"]]["message"]["content"]
    assert len(acted["candidates"]) == 3
    closed = await _call(server, "episode_outcome", episode_id="a b/1", reward=1)
    assert (closed["episode_id"], closed["reward"], closed["steps"]) == ("a b/1", 1, 1)
    unknown = await _call(server, "episode_outcome", episode_id="a b/2", reward=1)
    assert "'a b/2'" in unknown


async def test_the_servers_refusal_is_what_the_model_reads(server: Server) -> None:
    told = await _call(server, "act", messages=HISTORY, q_model="other")
    assert "'other'" in told
    wrong = await _call(Server(server.url, "qg-wrong"), "act", messages=HISTORY)
    assert "key" in wrong


async def test_a_server_that_is_not_there_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    told = await _call(Server(url, ""), "act", messages=HISTORY)
    assert f"no answer from the QGuide server at {url}" in told


async def test_the_command_speaks_over_its_standard_streams(server: Server) -> None:
    environment = os.environ | {"QGUIDE_URL": server.url, "QGUIDE_API_KEY": server.key}
    command = StdioServerParameters(command=sys.executable, args=["-m", "qguide", "mcp"], env=environment)
    async with Client(command) as client:
        result = await client.call_tool("act", {"messages": HISTORY})
    assert not result.is_error
    assert result.structured_content
    assert result.structured_content["guided"] is True


async def _until_it_listens(port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "the command does not listen"
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


OF_PAGES = {"Host": "evil.example", "Origin": "http://evil.example", "Content-Type": "text/plain"}
"""Headers of a web page whose name means this machine, of another page, and of one whose browser
does not ask first."""


def _asked_by_a_page(port: int, header: str) -> int:
    headers = {"Content-Type": "application/json", header: OF_PAGES[header]}
    content = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
    return httpx.post(f"http://127.0.0.1:{port}/mcp", content=content, headers=headers).status_code


async def test_the_command_speaks_over_http_and_to_no_web_page(server: Server) -> None:
    port = free_port()
    options = ["--url", server.url, "--api-key", server.key, "--http-port", str(port)]
    command = [sys.executable, "-m", "qguide", "mcp", *options]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as running:
        try:
            await _until_it_listens(port)
            async with Client(f"http://127.0.0.1:{port}/mcp") as client:
                tools = (await client.list_tools()).tools
                result = await client.call_tool("act", {"messages": HISTORY})
            refused = [_asked_by_a_page(port, header) for header in OF_PAGES]
        finally:
            running.terminate()
    assert len(tools) == 3
    assert result.structured_content
    assert result.structured_content["guided"] is True
    assert refused == [421, 403, 400]


def test_without_the_sdk_the_extra_is_named() -> None:
    done = run_without(sorted(PACKAGES[MCP]), "from qguide.cli import app; app()", "mcp")
    assert done.returncode == 1
    assert "qguide mcp needs mcp, which is not installed; pip install '.[mcp]'" in done.stderr
