"""Clients whose default is /v1/completions, unmodified; see tests/support/foreign_clients.py."""

from qguide.server.chat.fake_openai import FakeUpstream
from tests.support.foreign_clients import BEST, LLAMA, client, lines_of, needs_llama, serving

OPENAI_LIKE = """
import json
import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(model="demo", api_base=sys.argv[1], api_key="any", max_retries=0)
print(json.dumps(llm.complete("find the mug").text))
print(json.dumps(llm.chat([ChatMessage(role="user", content="find the mug")]).message.content))
print(json.dumps("".join(piece.delta or "" for piece in llm.stream_complete("find the mug"))))
"""


@needs_llama
@client("LlamaIndex OpenAILike", "llama-index-llms-openai-like", "Completions, Chat", "completes, chats and streams")
def test_llama_indexs_default_completes_chats_and_streams() -> None:
    with serving(FakeUpstream()) as url:
        said = lines_of(LLAMA, "-c", OPENAI_LIKE, f"{url}/v1", env={"PYTHONPATH": ""})
    assert said == [BEST] * 3
