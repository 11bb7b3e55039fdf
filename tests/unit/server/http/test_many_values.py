"""Bodies of very many values or faults are refused in little time, on every route with a body."""

import json
import pkgutil
import time
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from qguide.server import routes as modules_of_routes
from qguide.server.app import create_app
from qguide.server.http.bodies import BodyRoute, body_schema, has_more_values, marks_in, most_values
from tests.unit.server.conftest import FAKES

JSON = {"content-type": "application/json"}
MEGABYTE = 1_000_000
MOST = most_values(FAKES.max_body_bytes)
CPU_S = 0.2
"""The goal for the whole request, at the best of a few times; it takes a fifth of that."""
USER: dict[str, Any] = {"role": "user", "content": "look"}
ASKED: dict[str, Any] = {"messages": [USER], "candidates": ["go"]}
PARTS: list[Any] = [{"role": "user", "content": "HERE"}]
CALLS: list[Any] = [{**USER, "tool_calls": "HERE"}]
FAULTY: list[tuple[str, dict[str, Any]]] = [
    ("/v1/score", {**ASKED, "candidates": "HERE"}),
    ("/v1/score", {**ASKED, "messages": "HERE"}),
    ("/v1/score", {"text_1": "look", "text_2": "HERE"}),
    ("/v1/score", {"text_1": "HERE", "text_2": "go"}),
    ("/v1/score/batch", {"items": "HERE"}),
    ("/v1/score/batch", {"items": [{**ASKED, "candidates": "HERE"}]}),
    ("/score", {"text_1": "look", "text_2": "HERE"}),
    ("/v1/rerank", {"query": "look", "documents": "HERE"}),
    ("/v1/rerank", {"query": "look", "texts": "HERE"}),
    ("/rerank", {"query": "look", "documents": "HERE", "truncation": True}),
    ("/v2/rerank", {"messages": "HERE", "documents": ["go"]}),
    ("/classify", {"messages": "HERE"}),
    ("/pooling", {"messages": PARTS}),
    ("/v1/act", {"messages": "HERE"}),
    ("/v1/act", {"messages": PARTS}),
    ("/v1/act", {"messages": CALLS}),
    ("/v1/chat/completions", {"messages": "HERE"}),
    ("/v1/chat/completions", {"messages": PARTS}),
    ("/v1/chat/completions", {"messages": CALLS}),
    ("/v1/completions", {"prompt": "look", "qguide": "HERE"}),
    ("/v1/responses", {"input": "HERE"}),
    ("/v1/responses", {"input": PARTS}),
    ("/v1/responses", {"input": "look", "tools": "HERE"}),
    ("/v1/messages", {"max_tokens": 1, "messages": "HERE"}),
    ("/v1/messages", {"max_tokens": 1, "messages": PARTS}),
    ("/v1/messages/count_tokens", {"messages": [USER], "system": "HERE"}),
    ("/v1/models/alias", {"alias": "a", "to": "HERE"}),
    ("/v1/models/load", {"folder": "HERE", "name": "a"}),
    ("/v1/episodes/a/outcome", {"reward": "HERE"}),
]
"""Bodies with a place for a list of faults, or for an object of them."""


def routes() -> Iterator[APIRoute]:
    """Every route that reads a body."""
    for module in pkgutil.iter_modules(modules_of_routes.__path__):
        router = getattr(import_module(f"{modules_of_routes.__name__}.{module.name}"), "router", None)
        if isinstance(router, APIRouter):
            for route in router.routes:
                if isinstance(route, APIRoute) and route.body_field is not None:
                    yield route


def lists_in(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema of a list within a schema of pydantic's core."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            yield schema
        for part in schema.values():
            yield from lists_in(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from lists_in(part)


def marks_outside_texts(text: str) -> int:
    """The marks of JSON that do not stand in texts, read one character at a time."""
    marks, inside, escaped = 0, False, False
    for character in text:
        if escaped:
            escaped = False
        elif inside:
            escaped, inside = character == "\\", character != '"'
        else:
            marks, inside = marks + (character in ",[{"), character == '"'
    return marks


@pytest.fixture(scope="module")
def everything() -> Iterator[TestClient]:
    """A server with the admin's routes as well."""
    app = create_app(FAKES.model_copy(update={"admin": True}))
    with TestClient(app, "http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


def refused_in_little_time(client: TestClient, path: str, body: bytes) -> bool:
    """True if the best of three requests is refused within the goal."""
    for _ in range(3):
        began_s = time.process_time()
        answer = client.post(path, content=body, headers=JSON)
        spent_s = time.process_time() - began_s
        assert answer.status_code in (400, 422), answer.text
        assert "malformed_body" in answer.text or "invalid_candidates" in answer.text
        assert len(answer.content) < 1_000
        if spent_s < CPU_S:
            return True
    return False


@cache
def many(fault: str, number: int) -> str:
    """A list of so many faults, or an object of faults that have names."""
    if not fault.startswith('"'):
        return f"[{','.join([fault] * number)}]"
    return f"{{{','.join(fault.replace('{}', str(one)) for one in range(number))}}}"


@pytest.mark.parametrize("fault", ["1", "[]", '{"role":1,"type":1}', '"a{}":"x"'])
@pytest.mark.parametrize(("path", "body"), FAULTY)
def test_very_many_faults_are_refused_in_little_time(
    everything: TestClient, path: str, body: dict[str, Any], fault: str
) -> None:
    within = (MOST - 50) // (marks_in(fault.encode()) + 1)
    for number in (within, MEGABYTE // (len(fault) + 1)):
        sent = json.dumps(body).replace('"HERE"', many(fault, number)).encode()
        assert refused_in_little_time(everything, path, sent)


@pytest.mark.parametrize("path", ["/v1/act", "/v1/chat/completions", "/v1/responses"])
def test_a_megabyte_of_tiny_values_in_a_field_that_takes_anything_is_refused(everything: TestClient, path: str) -> None:
    for value in ("[1" + ",1" * 500_000 + "]", "[" + "[]," * 300_000 + "1]", "[" * 500_000):
        body = f'{{"messages": [{json.dumps(USER)}], "input": "look", "metadata": {value}}}'
        assert refused_in_little_time(everything, path, body.encode())


def test_the_number_of_values_is_said_with_its_limit(client: TestClient) -> None:
    body = {"messages": [1] * (MOST + 1)}
    answer = client.post("/v1/act", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith(
        "the body has more than 65,536 JSON values; send fewer, or raise QGUIDE_MAX_BODY_BYTES"
    )


def test_very_many_unknown_fields_are_counted(client: TestClient) -> None:
    body = {"messages": [USER]} | {f"field {number}": 1 for number in range(1_000)}
    answer = client.post("/v1/act", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith("the body has 1,000 faults; ")


def test_marks_within_texts_are_no_values(client: TestClient) -> None:
    text = '[{"a": 1, "b": [2, 3]}, \\"x\\\\", ' * 10_000  # a tool's answer, as agents send it
    asked = {"messages": [{"role": "user", "content": text}], "candidates": ["go"]}
    assert marks_in(json.dumps(asked).encode()) > 50_000
    assert client.post("/v1/score", json=asked).status_code == 200


JSON_VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a",[{\\é\n', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='a",[{\\', max_size=4), inner, max_size=4)
    ),
    max_leaves=30,
)


@given(JSON_VALUES, st.booleans(), st.integers(0, 3))
def test_values_are_counted_as_by_reading_every_character(value: Any, ascii_only: bool, below: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    marks = marks_outside_texts(text)
    assert not has_more_values(text.encode(), marks)
    assert has_more_values(text.encode(), marks - 1 - below)


def test_every_route_that_reads_a_body_reads_it_within_the_limits() -> None:
    found = list(routes())
    assert len(found) > 15
    assert [route.path for route in found if not isinstance(route, BodyRoute)] == []


def test_every_list_of_every_body_stops_at_its_first_fault() -> None:
    for route in routes():
        for schema in lists_in(body_schema(route).core_schema):
            assert schema.get("fail_fast"), f"a list of {route.path}: write ListOf[…], not list[…]"


def test_a_list_of_faults_has_the_faults_of_its_first_part() -> None:
    [route] = (one for one in routes() if one.path == "/v1/score")
    with pytest.raises(ValidationError) as refused:
        body_schema(route).validate_python({**ASKED, "candidates": [1] * 1_000})
    assert refused.value.error_count() == 2  # one for each form that a candidate may have
