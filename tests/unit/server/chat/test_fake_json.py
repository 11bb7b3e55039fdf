"""The fake upstream answers in the JSON that a request asks for, or says why it does not."""

import json
from typing import Any

import jsonschema
import pytest
from fastapi.testclient import TestClient

from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream

USER = {"role": "user", "content": "find the mug"}
STEP = {
    "$defs": {"Place": {"enum": ["desk", "shelf"]}},
    "type": "object",
    "title": "Step",
    "properties": {
        "thought": {"type": "string", "description": "why", "minLength": 12, "maxLength": 20},
        "place": {"$ref": "#/$defs/Place"},
        "count": {"type": "integer", "minimum": 3, "maximum": 4},
        "sure": {"type": ["boolean", "null"]},
        "kind": {"const": "move"},
        "after": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "others": {
            "type": "array",
            "minItems": 3,
            "items": {"type": "object", "properties": {"name": {"type": "string"}}},
        },
        "none": {"type": "null"},
    },
    "required": ["thought", "place", "count", "sure", "kind", "after", "others", "none"],
    "additionalProperties": False,
}


def ask(response_format: Any, **body: Any) -> Any:
    with TestClient(FakeUpstream().app()) as client:
        asked = {"messages": [USER], "response_format": response_format} | body
        return client.post("/v1/chat/completions", json=asked)


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "step", "schema": schema}}


def test_replies_fit_the_schema_and_differ() -> None:
    choices = ask(schema_format(STEP), n=3).json()["choices"]
    said = [json.loads(choice["message"]["content"]) for choice in choices]
    for one in said:
        jsonschema.validate(one, STEP)
    assert len({json.dumps(one) for one in said}) == 3


def test_a_json_object_holds_the_reply_of_the_script() -> None:
    [choice] = ask({"type": "json_object"}).json()["choices"]
    assert json.loads(choice["message"]["content"]) == {"reply": DEFAULT_REPLIES[0]}


def test_plain_text_is_the_reply_of_the_script() -> None:
    [choice] = ask({"type": "text"}).json()["choices"]
    assert choice["message"]["content"] == DEFAULT_REPLIES[0]


def test_a_streamed_reply_is_the_same_json() -> None:
    text = ask(schema_format(STEP), stream=True).text
    events = [line.removeprefix("data: ") for line in text.splitlines() if line[6:7] == "{"]
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    jsonschema.validate(json.loads("".join(one.get("content") or "" for one in deltas)), STEP)


@pytest.mark.parametrize(
    ("response_format", "reason"),
    [
        ({"type": "grammar"}, "not one of text, json_object and json_schema"),
        ({"type": "json_schema"}, "json_schema with a schema"),
        (schema_format({"type": "string", "pattern": "a+"}), "the keyword 'pattern' of 'reply'"),
        (schema_format({"type": "thing"}), "'reply' has no type that the fake upstream knows"),
        (schema_format({"$ref": "#/$defs/None"}), "the schema of 'reply' is no object"),
        (schema_format({"type": "array", "items": {"$ref": "#"}}), "nested too deeply"),
        (schema_format({"type": "string", "minLength": 10**12}), "minLength is 1,000,000,000,000"),
        (schema_format({"type": "integer", "minimum": "x"}), "a parameter is malformed"),
    ],
)
def test_what_it_cannot_make_is_refused_with_the_reason(response_format: Any, reason: str) -> None:
    answer = ask(response_format)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]
