"""Requests that tests of chat completions share."""

import json
from typing import Any

from fastapi.testclient import TestClient

USER = {"role": "user", "content": "find the mug"}
TOOL = {
    "type": "function",
    "function": {"name": "go", "parameters": {"type": "object", "properties": {"to": {"enum": ["desk", "shelf"]}}}},
}


def ask(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/chat/completions", json={"messages": [USER]} | body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refusal(client: TestClient, status: int, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/chat/completions", json={"messages": [USER]} | body)
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    return error


def events_of(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    asked = {"messages": [USER], "stream": True} | body
    response = client.post("/v1/chat/completions", json=asked)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, end, rest = response.text.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    return [json.loads(e.removeprefix("data: ")) for e in events if not e.startswith(":")]
