"""Refusals by a schema are those of a whole implementation, and any schema ends."""

from typing import Any

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st

from qguide.qnet.scoring.rules import conforms

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "bb", 1.0, 1.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(["object", "array", "string", "boolean", "null", "number", "integer"])


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
            "enum": st.lists(VALUES, min_size=1, max_size=3),
            "const": VALUES,
            "properties": st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
            "required": st.lists(st.sampled_from(["a", "b"]), unique=True),
            "additionalProperties": inner,
            "items": inner,
            "minimum": st.integers(-2, 2),
            "maximum": st.integers(-2, 2),
            "exclusiveMinimum": st.integers(-2, 2),
            "exclusiveMaximum": st.integers(-2, 2),
            "minLength": st.integers(0, 2),
            "maxLength": st.integers(0, 2),
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
        },
    )


SCHEMAS = st.recursive(st.booleans() | _schemas(st.booleans()), _schemas, max_leaves=4)


@settings(max_examples=100)
@given(VALUES, SCHEMAS)
def test_it_agrees_with_a_whole_implementation(value: Any, schema: Any) -> None:
    whole = jsonschema.Draft202012Validator(schema)
    assert conforms(value, schema) == whole.is_valid(value)


@given(VALUES, VALUES)
def test_what_is_no_schema_raises_nothing(value: Any, schema: Any) -> None:
    assert conforms(value, schema) in (True, False)


def test_references_within_the_schema_are_followed() -> None:
    schema = {"$defs": {"P": {"type": "integer"}}, "properties": {"x": {"$ref": "#/$defs/P"}}}
    assert conforms({"x": 1}, schema)
    assert not conforms({"x": "1"}, schema)
    assert conforms({"x": "1"}, {"properties": {"x": {"$ref": "https://example.org/s"}}})


def test_a_schema_that_refers_to_itself_ends() -> None:
    endless: dict[str, Any] = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}
    assert conforms(1, endless)
    assert conforms(1, {"$ref": "#"})
    wide = {"items": {"enum": list(range(1000))}}
    assert conforms([-1] * 1000, wide) in (True, False)
