"""Clients whose default is the Responses API, unmodified; see tests/support/foreign_clients.py."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.training.environments.alfworld.engines.python import PythonEnvironment
from qguide.training.environments.alfworld.game.generator import generate_game
from tests.support.alfworld_upstream import AlfWorldUpstream
from tests.support.documents import blocks_of
from tests.support.foreign_clients import BEST, NODE, PYTHON, client, lines_of, needs_node, needs_python, serving
from tests.support.serving import ROOT


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(FakeUpstream()) as url:
        yield f"{url}/v1"


AGENTS_SDK = """
import asyncio
import json
import sys

from agents import Agent, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI


@function_tool
def look(place: str) -> str:
    return f"{place} has a mug"


async def main() -> None:
    set_tracing_disabled(True)
    set_default_openai_client(AsyncOpenAI(base_url=sys.argv[1], api_key="any", max_retries=0))
    agent = Agent(name="finder", instructions="Find things.", model="demo", tools=[look])
    done = await Runner.run(agent, "find the mug")
    kinds = [item.type for item in done.new_items]
    print(json.dumps([done.final_output, kinds, done.context_wrapper.usage.requests]))
    streamed = Runner.run_streamed(agent, "find the mug")
    events = [e.data.type async for e in streamed.stream_events() if e.type == "raw_response_event"]
    print(json.dumps([streamed.final_output, events.count("response.completed")]))


asyncio.run(main())
"""


@needs_python
@client("OpenAI Agents SDK", "openai-agents", "Responses", "a loop with a tool, whole and streamed")
def test_the_openai_agents_sdk_runs_a_loop_with_a_tool(url: str) -> None:
    done, streamed = lines_of(PYTHON, "-c", AGENTS_SDK, url)
    assert done == [BEST, ["tool_call_item", "tool_call_output_item", "message_output_item"], 2]
    assert streamed == [BEST, 2]


AGENT_FRAMEWORK = """
import asyncio
import json
import sys

from agent_framework import Agent, tool
from agent_framework.openai import OpenAIChatClient


@tool(approval_mode="never_require")
def look(place: str) -> str:
    return f"{place} has a mug"


async def main() -> None:
    client = OpenAIChatClient(model="demo", api_key="any", base_url=sys.argv[1])
    agent = Agent(client, instructions="Find.", tools=[look], default_options={"store": False})
    done = await agent.run("find the mug")
    print(json.dumps([done.text, [message.role for message in done.messages]]))
    streamed = await agent.run("find the mug", stream=True).get_final_response()
    print(json.dumps(streamed.text))


asyncio.run(main())
"""


@needs_python
@client("Microsoft Agent Framework", "agent-framework-openai", "Responses", "a loop with a tool, whole and streamed")
def test_the_agent_framework_runs_a_loop_with_a_tool(url: str) -> None:
    done, streamed = lines_of(PYTHON, "-c", AGENT_FRAMEWORK, url)
    assert done == [BEST, ["assistant", "tool", "assistant"]]
    assert streamed == BEST


OPENAI_NODE = """
import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

const client = new OpenAI({ baseURL: process.argv[1], apiKey: "any", maxRetries: 0 });
const parameters = {
  type: "object",
  properties: { place: { type: "string", enum: ["desk", "shelf"] } },
  required: ["place"],
  additionalProperties: false,
};
const tools = [{ type: "function", name: "look", strict: true, parameters }];
const input = [{ role: "user", content: "find the mug" }];
const { output } = await client.responses.create({ model: "demo", input, tools });
const [call] = output;
const result = { type: "function_call_output", call_id: call.call_id, output: "a mug" };
input.push(...output, result);
const stream = client.responses.stream({ model: "demo", input, tools });
let text = "";
for await (const event of stream) {
  if (event.type === "response.output_text.delta") text += event.delta;
}
const final = await stream.finalResponse();
console.log(JSON.stringify([call.name, call.arguments, text, final.output_text, final.status]));
const socket = new ResponsesWS(client);
const said = [];
socket.on("error", (error) => said.push(error.message) && socket.close());
socket.on("response.completed", ({ response }) => {
  said.push(response.output[0].content[0].text);
  const previous_response_id = said.length < 2 ? response.id : "unknown";
  socket.send({ type: "response.create", model: "demo", input: "go on", previous_response_id });
});
socket.socket.on("open", () => socket.send({ type: "response.create", model: "demo", input }));
socket.socket.on("close", () => console.log(JSON.stringify(said)));
"""


@needs_node
@client("OpenAI SDK (Node)", "openai", "Responses", "calls a tool, streams, speaks WebSocket")
def test_openais_node_sdk_calls_a_tool_and_streams(url: str) -> None:
    said, by_socket = lines_of("node", "--input-type=module", "-e", OPENAI_NODE, url, cwd=NODE)
    assert by_socket[:2] == [BEST, BEST]
    assert "'unknown' was not stored" in by_socket[2]
    assert said == ["look", '{"place": "desk"}', BEST, BEST, "completed"]


AI_SDK = """
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const openai = createOpenAI({ baseURL: process.argv[1], apiKey: "any" });
const look = tool({
  description: "Look at a place.",
  inputSchema: z.object({ place: z.enum(["desk", "shelf"]) }),
  execute: async ({ place }) => `${place} has a mug`,
});
const asked = {
  model: openai("demo"),
  prompt: "find the mug",
  tools: { look },
  stopWhen: stepCountIs(3),
  maxRetries: 0,
};
const say = (value) => console.log(JSON.stringify(value));
for (const providerOptions of [{}, { openai: { store: false } }]) {
  const done = await generateText({ ...asked, providerOptions });
  const calls = done.steps[0].toolCalls.map((call) => [call.toolName, call.input]);
  say([done.text, done.steps.length, calls]);
  const streamed = streamText({ ...asked, providerOptions });
  let text = "";
  for await (const piece of streamed.textStream) text += piece;
  say([text, (await streamed.steps).length]);
}
"""


@needs_node
@client("AI SDK", "@ai-sdk/openai", "Responses", "a loop with a tool, stored and not, whole and streamed")
def test_the_ai_sdk_runs_a_loop_with_a_tool(url: str) -> None:
    said = lines_of("node", "--input-type=module", "-e", AI_SDK, url, cwd=NODE)
    assert said == [[BEST, 2, [["look", {"place": "desk"}]]], [BEST, 2]] * 2


RESPONSES_PAGE = "docs/connect/responses.md"
WEBSOCKETS = "supports_websockets = true"
UNSUPERVISED = """
approval_policy = "never"
sandbox_mode = "danger-full-access"
"""


def configured(home: Path, url: str) -> dict[str, str]:
    """Codex with the configuration that the page shows; its environment."""
    [config] = [b.text for b in blocks_of(RESPONSES_PAGE) if "wire_api" in b.text]
    given = config.replace("http://127.0.0.1:8000", url).replace('"gpt"', '"demo"')
    assert WEBSOCKETS in given
    home.mkdir()
    (home / "config.toml").write_text(UNSUPERVISED + given)
    return {"CODEX_HOME": str(home)}


def run_codex(prompt: str, workplace: Path, env: dict[str, str]) -> list[dict[str, Any]]:
    """The events of one turn."""
    workplace.mkdir(exist_ok=True)
    program = str(Path(NODE) / "node_modules" / ".bin" / "codex")
    asked = [program, "exec", "--skip-git-repo-check", "--json", prompt]
    return lines_of(*asked, cwd=str(workplace), env=env)


def end(url: str) -> dict[str, Any]:
    """Tell the outcome of the session that the page's configuration names."""
    answer = httpx.post(f"{url}/v1/episodes/my-session/outcome", json={"reward": 1.0}).json()
    assert isinstance(answer, dict)
    return answer


@needs_node
@client("Codex", "@openai/codex", "Responses", "a turn that runs a command, by WebSocket, as an episode")
def test_codex_runs_a_command_in_a_turn_and_the_episode_has_its_steps(tmp_path: Path) -> None:
    fake = FakeUpstream(calls=[("exec_command", {"cmd": f"echo mug {k}"}) for k in range(3)])
    with serving(fake) as url:
        env = configured(tmp_path / "codex", url)
        events = run_codex("find the mug", tmp_path / "workplace", env)
        outcome = end(url)
        counted = httpx.get(f"{url}/metrics").text
    assert 'route="/v1/responses",status="101"' in counted
    assert 'route="/v1/responses",status="400"' not in counted
    done = [event["item"] for event in events if event["type"] == "item.completed"]
    [command] = [item for item in done if item["type"] == "command_execution"]
    assert command["exit_code"] == 0
    assert command["aggregated_output"].startswith("mug ")
    assert done[-1]["text"] in DEFAULT_REPLIES
    assert events[-1]["type"] == "turn.completed"
    assert outcome["steps"] == 2
    assert {turn["role"] for turn in fake.asked[1]["messages"]} >= {"developer", "tool"}


@needs_node
def test_codex_goes_on_over_http_at_once_where_the_operator_allows_no_websocket(tmp_path: Path) -> None:
    fake = FakeUpstream(calls=[("exec_command", {"cmd": "echo mug"})])
    with serving(fake, websockets_per_key=0) as url:
        env = configured(tmp_path / "codex", url)
        events = run_codex("find the mug", tmp_path / "workplace", env)
    said = [event["item"] for event in events if event["type"] == "item.completed"]
    assert not any("WebSocket" in item.get("message", "") for item in said)
    assert events[-1]["type"] == "turn.completed"


SEED = 900_002
ACT = """#!{python}
import sys
from pathlib import Path

from qguide.training.environments.alfworld.engines.python import PythonEnvironment
from qguide.training.environments.alfworld.game.generator import generate_game

done = Path("actions.txt")
before = done.read_text().splitlines() if done.exists() else []
environment = PythonEnvironment(generate_game({seed}))
environment.reset()
for action in before:
    environment.step(action)
action = " ".join(sys.argv[1:])
result = environment.step(action)
done.write_text("\\n".join([*before, action]))
print(result.observation, "{won}" if environment.won else "")
"""


@needs_node
@client("Codex", "@openai/codex", "Responses", "a game of ALFWorld by commands, recorded as an episode")
def test_codex_plays_a_game_of_alfworld_by_commands(tmp_path: Path) -> None:
    upstream = AlfWorldUpstream("exec_command", "cmd", before="./act ", errs=False)
    workplace, records = tmp_path / "workplace", tmp_path / "records"
    workplace.mkdir()
    program = workplace / "act"
    program.write_text(ACT.format(python=sys.executable, seed=SEED, won=upstream.won))
    program.chmod(0o755)
    environment = PythonEnvironment(generate_game(SEED))
    with serving(upstream, episodes_dir=records) as url:
        env = configured(tmp_path / "codex", url) | {"PYTHONPATH": str(ROOT)}
        events = run_codex(environment.reset(), workplace, env)
        outcome = end(url)
    taken = (workplace / "actions.txt").read_text().splitlines()
    for action in taken:
        environment.step(action)
    assert environment.won
    assert events[-1]["type"] == "turn.completed"
    assert (outcome["steps"], outcome["recorded"]) == (len(taken) + 1, True), outcome
    assert set(upstream.sessions) == {"my-session"}
