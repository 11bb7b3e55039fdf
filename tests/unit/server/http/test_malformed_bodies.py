"""A body that no route can read is refused with the place in what was sent."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

USER = {"role": "user", "content": "look"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "body.messages: Field required"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "body.messages.0.role: "),
        ({"messages": [USER], "temperature": -1}, "body.temperature: "),
        ({"messages": [USER], "max_tokens": 0}, "(it is '0')"),
        ({"messages": [USER], "colour": "red"}, "body.colour: Extra inputs are not permitted"),
    ],
)
def test_a_body_of_another_shape_is_422(client: TestClient, body: Any, said: str) -> None:
    response = client.post("/v1/act", json=body)
    assert response.status_code == 422
    assert response.json()["error"]["code"] == "malformed_body"
    assert said in response.json()["error"]["message"]


def test_what_is_not_json_is_422(client: TestClient) -> None:
    headers = {"content-type": "application/json"}
    response = client.post("/v1/act", content=b'{"a": 1, b}', headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (422, "malformed_body")
    assert error["message"].startswith("the body is not JSON at character 9: ")


@pytest.mark.parametrize(
    ("body", "headers", "param"),
    [
        ({"messages": [USER]}, {"X-QGuide-Timeout-S": "soon"}, "X-QGuide-Timeout-S"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, {}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, {}, "messages.0.content.0.type"),
        ({}, {}, "messages"),
        ([], {}, None),
    ],
)
def test_the_parameter_is_the_place_in_what_was_sent(
    client: TestClient, body: Any, headers: dict[str, str], param: str | None
) -> None:
    response = client.post("/v1/chat/completions", json=body, headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "malformed_body", param)


def test_no_parameter_is_named_where_openais_body_is_not_json(client: TestClient) -> None:
    headers = {"content-type": "application/json"}
    response = client.post("/v1/chat/completions", content=b'{"model": }', headers=headers)
    error = response.json()["error"]
    assert error["param"] is None
    assert error["message"].startswith("the body is not JSON at character 10: ")
