"""LangChain and LiteLLM, unmodified, against this server with a fake upstream.

LiteLLM wants another huggingface-hub than transformers does, so it needs an environment of its own,
which `make test-litellm` makes; QGUIDE_LITELLM_PYTHON names its Python.
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
