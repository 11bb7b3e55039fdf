"""Frameworks of agents, unmodified, against this server with a fake upstream.

LiteLLM wants another huggingface-hub than transformers does, so it needs an environment of its own,
which `make test-litellm` makes; QGUIDE_LITELLM_PYTHON names its Python. For the others see
tests/support/foreign_clients.py.
"""

import os
import subprocess
from collections.abc import Iterator

import pytest
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import SecretStr

from qguide.server.app import create_app
from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.foreign_clients import NODE, PYTHON, client, lines_of, needs_node, needs_python, serving
from tests.support.serving import serving_app

BEST = DEFAULT_REPLIES[2]
LITELLM_PYTHON = os.environ.get("QGUIDE_LITELLM_PYTHON", "")
SCHEMA = {"type": "object", "properties": {"place": {"type": "string", "enum": ["desk"]}}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving_app(FakeUpstream().app()) as behind:
        demo = Upstream.model_validate({"url": f"{behind}/v1", "model": "fake"})
        settings = Settings(policy="demo", upstreams={"demo": demo}, q_models={"q": SCRIPTED}, unknown_models="error")
        with serving_app(create_app(settings)) as address:
            yield f"{address}/v1"


def test_langchain(url: str) -> None:
    key = SecretStr("any")
    model = ChatOpenAI(model="demo", base_url=url, api_key=key, max_retries=0)
    assert model.invoke("find the mug").content == BEST
    assert "".join(str(piece.content) for piece in model.stream("find the mug")) == BEST
    tool = {"name": "look", "description": "Look.", "parameters": SCHEMA}
    called = model.bind_tools([tool]).invoke("find the mug")
    assert [(c["name"], c["args"]) for c in called.tool_calls] == [("look", {"place": "desk"})]


def test_langchains_model_without_chats(url: str) -> None:
    model = OpenAI(model="demo", base_url=url, api_key=SecretStr("any"), max_retries=0)
    assert model.invoke("find the mug") == BEST
    assert "".join(model.stream("find the mug")) == BEST


def test_langchain_over_the_responses_api(url: str) -> None:
    key = SecretStr("any")
    model = ChatOpenAI(model="demo", base_url=url, api_key=key, use_responses_api=True)
    assert model.invoke("find the mug").text == BEST
    assert "".join(piece.text for piece in model.stream("find the mug")) == BEST
    tool = {"name": "look", "description": "Look.", "parameters": SCHEMA}
    called = model.bind_tools([tool]).invoke("find the mug")
    assert [(c["name"], c["args"]) for c in called.tool_calls] == [("look", {"place": "desk"})]


LITELLM = """
import sys
import litellm

litellm.suppress_debug_info = True  # it goes to stdout
asked = {
    "model": "openai/demo",
    "api_base": sys.argv[1],
    "api_key": "any",
    "messages": [{"role": "user", "content": "find the mug"}],
}
print(litellm.completion(**asked).choices[0].message.content)
pieces = litellm.completion(**asked, stream=True)
print("".join(piece.choices[0].delta.content or "" for piece in pieces))
tool = {"type": "function", "function": {"name": "look", "parameters": {"properties": {"at": {}}}}}
[call] = litellm.completion(**asked, tools=[tool]).choices[0].message.tool_calls
print(call.function.name, call.function.arguments)
try:
    litellm.completion(**(asked | {"model": "openai/gpt-9"}))
except litellm.NotFoundError as error:
    print("there is no policy" in str(error))
"""


@pytest.mark.skipif(not LITELLM_PYTHON, reason="QGUIDE_LITELLM_PYTHON names no Python with LiteLLM")
def test_litellm(url: str) -> None:
    done = subprocess.run(
        [LITELLM_PYTHON, "-c", LITELLM, url],
        env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f'{BEST}\n{BEST}\nlook {{"at": "at 0"}}\nTrue\n'


AGENTS = """
import asyncio, json, sys

URL = sys.argv[1]
V1 = URL + "/v1"


def look(place: str) -> str:
    \"\"\"Look at a place.\"\"\"
    return f"{place} has a mug"


def say(value):
    print(json.dumps(value))
"""

LANGCHAIN = (
    AGENTS
    + """
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI

openai = {"model": "demo", "base_url": V1, "api_key": "any", "max_retries": 0}
models = [
    ChatOpenAI(**openai),
    ChatOpenAI(**openai, use_responses_api=True, use_previous_response_id=True),
    ChatAnthropic(model="demo", base_url=URL, api_key="any", max_retries=0),
    ChatGoogleGenerativeAI(model="demo", base_url=URL, api_key="any", max_retries=1),
    ChatOllama(model="demo", base_url=URL),
]
for model in models:
    agent, turns = create_agent(model, [look]), []
    for task in ("find the mug", "find the cup"):
        turns = agent.invoke({"messages": [*turns, ("user", task)]})["messages"]
    said = "".join(piece.text for piece in model.stream("find the mug"))
    say([turns[-1].text, len(turns), said])
"""
)

PYDANTIC = (
    AGENTS
    + """
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


async def main():
    openai = OpenAIProvider(openai_client=AsyncOpenAI(base_url=V1, api_key="any", max_retries=0))
    anthropic = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=URL, api_key="any", max_retries=0))
    models = [OpenAIChatModel("demo", provider=openai), OpenAIResponsesModel("demo", provider=openai)]
    for model in (*models, AnthropicModel("demo", provider=anthropic)):
        agent, turns = Agent(model, tools=[look]), []
        for task in ("find the mug", "find the cup"):
            done = await agent.run(task, message_history=turns)
            turns = done.all_messages()
        async with agent.run_stream("find the mug", message_history=turns) as stream:
            say([done.output, len(turns), await stream.get_output()])


asyncio.run(main())
"""
)

SEMANTIC_KERNEL = (
    AGENTS
    + """
from google import genai
from openai import AsyncOpenAI
from semantic_kernel.agents import ChatCompletionAgent, OpenAIResponsesAgent
from semantic_kernel.connectors.ai.google.google_ai import GoogleAIChatCompletion
from semantic_kernel.functions import kernel_function


class Places:
    look = staticmethod(kernel_function(description="Look at a place.")(look))


async def main():
    openai = AsyncOpenAI(base_url=V1, api_key="any", max_retries=0)
    google = genai.Client(api_key="any", http_options={"base_url": URL})
    service = GoogleAIChatCompletion(gemini_model_id="demo", client=google)
    asked = {"name": "finder", "instructions": "Find things.", "plugins": [Places()]}
    for agent in (
        OpenAIResponsesAgent(ai_model_id="demo", client=openai, **asked),
        ChatCompletionAgent(service=service, **asked),
    ):
        first = await agent.get_response("find the mug")
        second = await agent.get_response("find the cup", thread=first.thread)
        say([str(first), str(second)])


asyncio.run(main())
"""
)

AI_SDK = """
import { createAnthropic } from "@ai-sdk/anthropic";
import { createGoogle } from "@ai-sdk/google";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url] = process.argv.slice(1);
const look = tool({
  inputSchema: z.object({ place: z.enum(["desk", "shelf"]) }),
  execute: async ({ place }) => `${place} has a mug`,
});
const models = [
  createAnthropic({ baseURL: `${url}/v1`, apiKey: "any" })("demo"),
  createGoogle({ baseURL: `${url}/v1beta`, apiKey: "any" })("demo"),
];
for (const model of models) {
  const asked = { model, tools: { look }, stopWhen: stepCountIs(3), maxRetries: 0 };
  const messages = [{ role: "user", content: "find the mug" }];
  const { text, response } = await generateText({ ...asked, messages });
  messages.push(...response.messages, { role: "user", content: "find the cup" });
  const streamed = streamText({ ...asked, messages });
  console.log(JSON.stringify([text, await streamed.text, (await streamed.steps).length]));
}
"""

AGENTS_JS = """
import { Agent, MemorySession, OpenAIProvider, Runner, tool } from "@openai/agents";
import { z } from "zod";

const [url] = process.argv.slice(1);
const look = tool({
  name: "look",
  description: "Look at a place.",
  parameters: z.object({ place: z.enum(["desk", "shelf"]) }),
  execute: async ({ place }) => `${place} has a mug`,
});
for (const useResponses of [true, false]) {
  const modelProvider = new OpenAIProvider({ baseURL: `${url}/v1`, apiKey: "any", useResponses });
  const runner = new Runner({ modelProvider, tracingDisabled: true });
  const agent = new Agent({ name: "finder", instructions: "Find things.", model: "demo", tools: [look] });
  const session = new MemorySession();
  const done = await runner.run(agent, "find the mug", { session });
  const streamed = await runner.run(agent, "find the cup", { session, stream: true });
  await streamed.completed;
  console.log(JSON.stringify([done.finalOutput, streamed.finalOutput]));
}
"""


@needs_python
@client(
    "LangChain", "langchain", "Chat, Responses, Messages, Gemini, Ollama", "two turns of a loop with a tool, streams"
)
def test_langchains_agent_takes_a_second_turn_over_every_api() -> None:
    fake = FakeUpstream()
    with serving(fake) as address:
        said = lines_of(PYTHON, "-c", LANGCHAIN, address, env={"PYTHONPATH": ""})
    assert said == [[BEST, 8, BEST]] * 5
    check_pairs(fake)


@needs_python
@client("Pydantic AI", "pydantic-ai-slim", "Chat, Responses, Messages", "two turns of a loop with a tool, streams")
def test_pydantic_ais_agent_takes_a_second_turn() -> None:
    fake = FakeUpstream()
    with serving(fake) as address:
        said = lines_of(PYTHON, "-c", PYDANTIC, address, env={"PYTHONPATH": ""})
    assert said == [[BEST, 8, BEST]] * 3
    check_pairs(fake)


@needs_python
@client("Semantic Kernel", "semantic-kernel", "Responses, Gemini", "two turns of a loop with a tool")
def test_semantic_kernels_agents_take_a_second_turn() -> None:
    fake = FakeUpstream()
    with serving(fake) as address:
        said = lines_of(PYTHON, "-c", SEMANTIC_KERNEL, address, env={"PYTHONPATH": ""})
    assert said == [[BEST, BEST]] * 2
    check_pairs(fake)


@needs_node
@client("AI SDK", "@ai-sdk/anthropic", "Messages, Gemini", "two turns of a loop with a tool, whole and streamed")
def test_the_ai_sdk_takes_a_second_turn_by_anthropics_and_googles_providers() -> None:
    fake = FakeUpstream()
    with serving(fake) as address:
        said = lines_of("node", "--input-type=module", "-e", AI_SDK, address, cwd=NODE)
    assert said == [[BEST, BEST, 2]] * 2
    check_pairs(fake)


@needs_node
@client("OpenAI Agents SDK (Node)", "@openai/agents", "Responses, Chat", "two turns of a session with a tool")
def test_the_agents_sdk_for_node_keeps_a_session() -> None:
    fake = FakeUpstream()
    with serving(fake) as address:
        said = lines_of("node", "--input-type=module", "-e", AGENTS_JS, address, cwd=NODE)
    assert said == [[BEST, BEST]] * 2
    check_pairs(fake)


def check_pairs(fake: FakeUpstream) -> None:
    """Check that the upstream got each result once, and right after the turn with its call."""
    assert fake.asked
    for asked in fake.asked:
        due: list[str] = []
        for turn in asked["messages"]:
            if turn["role"] == "tool":
                due.remove(turn["tool_call_id"])
                continue
            assert not due
            due = [call["id"] for call in turn.get("tool_calls") or ()]
        assert not due
