"""Chat completions, whole and in pieces."""

import json
from collections.abc import Iterator

import httpx
import pytest
from qguide_client import AsyncQGuide, QGuide, errors
from qguide_client.chat_stream import ChatStream
from qguide_client.chat_types import ChatChunk
from qguide_client.types import CustomToolCall, ToolCall

from clients.python.tests.conftest import AT_ONCE, client_of

TASK = [{"role": "user", "content": "You see a desk 1. Your task is to: look around."}]
LINE_ENDS_OF_UNICODE = "one\u2028two\u0085three\x0b"


def event(content: str, **more: object) -> str:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": None}
    chunk = {"id": "c1", "model": "m", "choices": [choice], **more}
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


DONE = "data: [DONE]\n\n"
GOOD = ": still working\n\n" + event("ein Käse") + event(LINE_ENDS_OF_UNICODE) + DONE


def read(pieces: Iterator[bytes]) -> list[ChatChunk]:
    stream = ChatStream(request_id="r0")
    chunks = [chunk for piece in pieces for chunk in stream.feed(piece)]
    stream.end()
    return chunks


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_chunks_are_the_same_however_the_bytes_are_cut(size: int, line_end: str) -> None:
    content = GOOD.replace("\n", line_end).encode()
    pieces = (content[start : start + size] for start in range(0, len(content), size))
    assert [chunk.content for chunk in read(pieces)] == ["ein Käse", LINE_ENDS_OF_UNICODE]


def test_an_event_may_have_several_lines_and_other_fields() -> None:
    lines = json.dumps(json.loads(event("a").removeprefix("data: ")), indent=1).splitlines()
    whole = "".join(f"data:{line}\n" for line in lines)
    pieces = iter([f"event: chunk\nid: 7\n{whole}\n{DONE}".encode()])
    assert [chunk.content for chunk in read(pieces)] == ["a"]


def test_a_stream_that_breaks_off_is_no_answer() -> None:
    with pytest.raises(errors.UnreachableError, match=r"\(request r0\)"):
        read(iter([event("a").encode()]))


def test_a_failure_in_the_stream_is_raised_as_its_class() -> None:
    error = {"error": {"code": "scorer_unavailable", "message": "the Q model is gone"}}
    with pytest.raises(errors.ScorerUnavailableError, match="Q model"):
        read(iter([event("a").encode(), f"data: {json.dumps(error)}\n\n".encode()]))


def test_what_is_no_chunk_is_shown() -> None:
    with pytest.raises(errors.UnreadableAnswerError, match="'hello'"):
        read(iter([b"data: hello\n\n"]))


def test_the_client_streams_and_sends_what_it_was_given() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        assert body == {
            "messages": TASK,
            "stream": True,
            "stream_options": {"include_usage": True},
            "qguide": {"num_candidates": 3},
            "top_p": 0.9,
        }
        return httpx.Response(200, content=GOOD.encode())

    with client_of(answer) as client:
        chunks = client.chat_stream(TASK, qguide={"num_candidates": 3}, extra_body={"top_p": 0.9, "stream": False})
        assert [chunk.content for chunk in chunks] == ["ein Käse", LINE_ENDS_OF_UNICODE]


def test_a_stream_is_asked_for_again_only_before_it_began() -> None:
    answers = iter([httpx.Response(503), httpx.Response(200, content=event("a").encode())])
    with client_of(lambda _: next(answers)) as client:
        chunks = client.chat_stream(TASK)
        assert next(chunks).content == "a"
        with pytest.raises(errors.UnreachableError):
            next(chunks)


def _breaking() -> Iterator[bytes]:
    yield event("a").encode()
    raise httpx.ReadError("reset by peer")


def test_a_connection_that_breaks_in_the_stream_is_told_as_ours() -> None:
    with client_of(lambda _: httpx.Response(200, content=_breaking())) as client:
        chunks = client.chat_stream(TASK)
        assert next(chunks).content == "a"
        with pytest.raises(errors.UnreachableError, match=r"/v1/chat/completions .*\(reset .*base_url"):
            next(chunks)


async def test_the_async_client_streams_and_refuses_too() -> None:
    answers = iter([httpx.Response(200, content=GOOD.encode()), httpx.Response(401)])
    transport = httpx.MockTransport(lambda _: next(answers))
    async with AsyncQGuide("http://qguide.test", retry=AT_ONCE, transport=transport) as client:
        chunks = [chunk async for chunk in client.chat_stream(TASK)]
        assert [chunk.content for chunk in chunks] == ["ein Käse", LINE_ENDS_OF_UNICODE]
        with pytest.raises(errors.UnauthorizedError):
            await anext(client.chat_stream(TASK))


def test_the_server_answers_whole_and_in_pieces(client: QGuide) -> None:
    whole = client.chat(TASK, qguide={"num_candidates": 3, "return_candidates": True})
    assert whole.content.endswith("Action: go to desk 1")
    assert whole.qguide.q_values
    assert whole.qguide.q_values[whole.qguide.chosen] == max(whole.qguide.q_values)
    assert len(whole.qguide.candidates) == 3
    assert whole.usage.completion_tokens > 0
    chunks = list(client.chat_stream(TASK, qguide={"num_candidates": 3}))
    assert "".join(chunk.content for chunk in chunks) == whole.content
    assert [chunk.qguide.chosen for chunk in chunks if chunk.qguide] == [whole.qguide.chosen]
    assert chunks[-1].usage == whole.usage
    with pytest.raises(errors.UnknownModelError):
        client.chat(TASK, model="nobody")


def test_calls_of_functions_and_of_custom_tools_are_read() -> None:
    from qguide.server.app import create_app
    from qguide.server.chat.fake_openai import FakeUpstream
    from qguide.server.settings.remote_models import Upstream
    from qguide.server.settings.settings import SCRIPTED, Settings
    from tests.support.serving import serving_app

    tools = [{"type": "custom", "custom": {"name": "shell"}}, {"type": "function", "function": {"name": "look"}}]
    with serving_app(FakeUpstream().app()) as upstream:
        served = Upstream.model_validate({"url": f"{upstream}/v1", "model": "m"})
        settings = Settings(policy="demo", upstreams={"demo": served}, q_models={"demo@1": SCRIPTED})
        with serving_app(create_app(settings)) as url, QGuide(url, retry=AT_ONCE) as client:
            answer = client.chat(TASK, n=2, tools=tools, qguide={"num_candidates": 2})
    calls = {call.type: call for choice in answer.choices for call in choice.message.tool_calls}
    custom, function = calls["custom"], calls["function"]
    assert isinstance(custom, CustomToolCall)
    assert isinstance(function, ToolCall)
    assert (custom.name, custom.custom.input) == ("shell", "input 0")
    assert (function.name, function.function.arguments) == ("look", "{}")
