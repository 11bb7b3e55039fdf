"""TypeScript's types of an OpenAPI document's schemas, to be compared with hand-written ones."""

import json
from collections.abc import Mapping
from typing import Any, Final

Schema = Mapping[str, Any]

_PLAIN: Final = {
    "boolean": "boolean",
    "integer": "number",
    "null": "null",
    "number": "number",
    "string": "string",
}


def declarations(schemas: Mapping[str, Schema]) -> str:
    """One interface per schema; what a schema allows beside its properties is left out."""
    return "\n".join(f"export interface {name} {_fields(one)}" for name, one in schemas.items())


def type_of(schema: Schema) -> str:
    """A schema as a type.

    >>> type_of({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]})
    '(readonly (number)[] | null)'
    """
    match schema:
        case {"$ref": reference}:
            return str(reference).rpartition("/")[2]
        case {"anyOf": choices} | {"oneOf": choices}:
            return f"({' | '.join(type_of(one) for one in choices)})"
        case {"const": value}:
            return json.dumps(value)
        case {"enum": choices}:
            return f"({' | '.join(json.dumps(choice) for choice in choices)})"
        case {"type": "array", "items": items}:
            return f"readonly ({type_of(items)})[]"
        case {"type": "object", "properties": _}:
            return _fields(schema)
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"Record<string, {type_of(values)}>"
        case {"type": "object"}:
            return "object"
        case {"type": kind} if kind in _PLAIN:
            return _PLAIN[kind]
    raise ValueError(f"no type for {dict(schema)}; teach `type_of` what it is")


def _fields(schema: Schema) -> str:
    required = schema.get("required", ())
    fields = (
        f"{name}{'' if name in required else '?'}: {type_of(one)};"
        for name, one in schema.get("properties", {}).items()
    )
    return f"{{ {' '.join(fields)} }}"
