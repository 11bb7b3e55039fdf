"""Sessions as long as agents have them pass, and only what is too long for the model is refused."""

from base64 import b64encode
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.server.chat.fake_openai import FakeUpstream

MESSAGES = 1_041
TEXT_BYTES = 1_500_000
SCREENSHOT = b64encode(bytes(700_000)).decode()
"""As large as one of a desktop."""
SCREENSHOTS = 4
ACTION = "run 'cat notes.txt' "
OBSERVATION = "x" * (2 * TEXT_BYTES // MESSAGES)


def turns() -> list[tuple[bool, str, bool]]:
    """Turns of the agent and of its environment: whether it is the agent's, its text, an image."""
    shown = range(100, MESSAGES, MESSAGES // SCREENSHOTS // 2 * 2)[:SCREENSHOTS]
    return [(place % 2 == 1, ACTION if place % 2 else OBSERVATION, place in shown) for place in range(MESSAGES)]


def chat() -> Any:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{SCREENSHOT}"}}
    return {
        "messages": [
            {
                "role": "assistant" if acts else "user",
                "content": [{"type": "text", "text": text}, image] if shows else text,
            }
            for acts, text, shows in turns()
        ]
    }


def responses() -> Any:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{SCREENSHOT}"}
    return {
        "input": [
            {
                "role": "assistant" if acts else "user",
                "content": [{"type": "input_text", "text": text}, image] if shows else text,
            }
            for acts, text, shows in turns()
        ]
    }


def messages() -> Any:
    source = {"type": "base64", "media_type": "image/png", "data": SCREENSHOT}
    image = {"type": "image", "source": source}
    return {
        "max_tokens": 9,
        "messages": [
            {
                "role": "assistant" if acts else "user",
                "content": [{"type": "text", "text": text}, image] if shows else text,
            }
            for acts, text, shows in turns()
        ],
    }


def gemini() -> Any:
    image = {"inlineData": {"mimeType": "image/png", "data": SCREENSHOT}}
    return {
        "contents": [
            {"role": "model" if acts else "user", "parts": [{"text": text}, *([image] if shows else ())]}
            for acts, text, shows in turns()
        ]
    }


DIALECTS = {
    "/v1/chat/completions": chat,
    "/v1/responses": responses,
    "/v1/messages": messages,
    "/v1beta/models/demo:generateContent": gemini,
}


@pytest.mark.parametrize("path", DIALECTS)
def test_a_session_of_a_thousand_messages_and_four_screenshots_is_guided(
    guided: TestClient, upstream: FakeUpstream, path: str
) -> None:
    body = DIALECTS[path]() | ({} if "beta" in path else {"model": "demo"})
    answer = guided.post(path, json=body)
    assert answer.status_code == 200, answer.text[:500]
    assert answer.json()["qguide"]["guided"]
    sent = upstream.asked[-1]["messages"]
    assert len(sent) == MESSAGES
    assert str(sent).count(SCREENSHOT) == SCREENSHOTS


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/chat/completions", "'context_length_exceeded'"),
        ("/v1/responses", "'context_length_exceeded'"),
        ("/v1/messages", "prompt is too long"),
        ("/v1beta/models/demo:generateContent", "input token count exceeds the maximum number"),
    ],
)
def test_what_is_too_long_for_the_model_is_told_in_the_dialects_words(
    guided: TestClient, upstream: FakeUpstream, path: str, said: str
) -> None:
    upstream.fault = "context"
    answer = guided.post(path, json=DIALECTS[path]())
    assert answer.status_code == 400
    assert said in str(answer.json())
