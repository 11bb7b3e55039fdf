"""LangChain and LiteLLM as they are, against this server with the fake upstream behind it."""

from collections.abc import Iterator
from typing import Any

import pytest

from server.app import create_app
from server.fake_upstream import DEFAULT_REPLIES, FakeUpstream
from server.settings import SCRIPTED, Settings, Upstream
from tests.running import running

BEST = DEFAULT_REPLIES[2]
ASKED: Any = [{"role": "user", "content": "find the mug"}]
SCHEMA = {"type": "object", "properties": {"place": {"type": "string", "enum": ["desk"]}}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(FakeUpstream().app()) as behind:
        demo = Upstream.model_validate({"url": f"{behind}/v1", "model": "fake"})
        settings = Settings(policy="demo", upstreams={"demo": demo}, q_models={"q": SCRIPTED})
        with running(create_app(settings)) as address:
            yield f"{address}/v1"


def test_langchain(url: str) -> None:
    langchain_openai = pytest.importorskip("langchain_openai")
    model = langchain_openai.ChatOpenAI(model="demo", base_url=url, api_key="any", max_retries=0)
    assert model.invoke("find the mug").content == BEST
    assert "".join(str(piece.content) for piece in model.stream("find the mug")) == BEST
    tool = {"name": "look", "description": "Look.", "parameters": SCHEMA}
    called = model.bind_tools([tool]).invoke("find the mug")
    assert [(c["name"], c["args"]) for c in called.tool_calls] == [("look", {"place": "desk"})]


def test_litellm(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    to_us: Any = {"model": "openai/demo", "api_base": url, "api_key": "any", "messages": ASKED}
    answer = litellm.completion(**to_us)
    assert answer.choices[0].message.content == BEST
    pieces = litellm.completion(**to_us, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == BEST
    function = {"name": "look", "parameters": SCHEMA}
    called = litellm.completion(**to_us, tools=[{"type": "function", "function": function}])
    [call] = called.choices[0].message.tool_calls
    assert call.function.arguments == '{"place": "desk"}'
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**(to_us | {"model": "openai/gpt-9"}), num_retries=0)
