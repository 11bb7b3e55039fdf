"""Client types against the OpenAPI document; tests/e2e compares the TypeScript file itself."""

from typing import Any, get_type_hints

import pytest
from qguide_client.types import BatchOptions, ScoreItem

from tools.client_types import view
from tools.client_types.__main__ import ROOT
from tools.client_types.python import python_files
from tools.client_types.typescript import typescript_document
from tools.reference_pages.api import api_document


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The server's OpenAPI document."""
    return api_document()


def test_the_python_clients_types_are_generated_from_the_document(document: dict[str, Any]) -> None:
    for path, text in python_files(document).items():
        assert (ROOT / path).read_text() == text, f"{path} is stale; run `make client-types`"


def test_an_item_of_a_batch_has_the_servers_fields(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert get_type_hints(ScoreItem).keys() == schemas["ScoreItem"]["properties"].keys()
    options = get_type_hints(BatchOptions).keys() - {"deadline_s"} | {"items"}
    assert options == schemas["ScoreBatchBody"]["properties"].keys()


def test_every_type_that_a_schema_names_is_there(document: dict[str, Any]) -> None:
    schemas = typescript_document(document)["components"]["schemas"]
    assert view.named_by(schemas, schemas) == schemas
    assert {"Decision", "ChatChunk", "ActOptions", "Message"} <= schemas.keys()


def _document(**schemas: dict[str, Any]) -> dict[str, Any]:
    return {"components": {"schemas": schemas}}


def _object(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


TEXT = {"type": "string", "title": "Text", "maxLength": 9, "description": "any"}


def test_limits_and_titles_are_left_to_the_server() -> None:
    seen = view.bodies_view(_document(Health=_object(status=TEXT)), ["Health"])
    fields = {"status": {"type": "string", "description": "any"}}
    assert seen["Readiness"]["properties"] == fields


def test_two_schemas_are_one_type_only_where_their_fields_are_equal() -> None:
    calls = {name: {"$ref": f"#/components/schemas/{name}"} for name in ("ToolCallBody",)}
    chat = {"chat": {"$ref": "#/components/schemas/ChatToolCall"}}
    same = _document(
        Health=_object(**calls, **chat),
        ToolCallBody=_object(id=TEXT),
        ChatToolCall=_object(id=TEXT | {"description": "another"}),
    )
    assert view.bodies_view(same, ["Health"]).keys() == {"Readiness", "ToolCall"}
    same["components"]["schemas"]["ChatToolCall"] = _object(name=TEXT)
    with pytest.raises(ValueError, match=r"ToolCallBody .*ToolCall .*NAMES"):
        view.bodies_view(same, ["Health"])


def test_an_argument_that_its_body_lacks_is_named() -> None:
    bodies = {one.body: _object(other=TEXT) for one in view.OPTIONS.values()}
    with pytest.raises(KeyError, match="update OPTIONS"):
        view.options_view(_document(**bodies))
