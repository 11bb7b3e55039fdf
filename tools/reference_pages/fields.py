"""Descriptions of pydantic fields: meanings from docstrings, types and limits from the schema."""

import inspect
import json
import re
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_jsonable_python

from tools.reference_pages.markdown import code

_ATTRIBUTES: Final = re.compile(r"^Attributes:\n(.*?)(?=^\S|\Z)", re.DOTALL | re.MULTILINE)
_ENTRY: Final = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*?)(?=^ {4}\w|\Z)", re.DOTALL | re.MULTILINE)
_MIB: Final = 1024**2
_LIMITS: Final = (
    ("exclusiveMinimum", ">"),
    ("minimum", "≥"),
    ("exclusiveMaximum", "<"),
    ("maximum", "≤"),
    ("minLength", "length ≥"),
    ("maxLength", "length ≤"),
    ("minItems", "items ≥"),
    ("minProperties", "entries ≥"),
)


def meanings(kind: type[BaseModel]) -> dict[str, str]:
    """Meaning of each field, from the docstrings of a model and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        for section in _ATTRIBUTES.findall(text + "\n"):
            for names, meaning in _ENTRY.findall(section):
                found |= dict.fromkeys(names.split(", "), " ".join(meaning.split()))
    described = {n: f.description for n, f in kind.model_fields.items() if f.description}
    return described | found


def limits(kind: type[BaseModel]) -> dict[str, str]:
    """Type and limits of each field in words."""
    schema = kind.model_json_schema()
    named = schema.get("$defs", {})
    return {name: _describe(part, named) for name, part in schema["properties"].items()}


def default(kind: type[BaseModel], name: str) -> str:
    """The default of a field as a user would write it, "none" or "required"."""
    value = kind.model_fields[name].get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        return "see below"
    if value is None or value in ("", (), {}):
        return "none"
    if name.endswith("_bytes") and isinstance(value, int) and value % _MIB == 0:
        return f"{code(value)} ({value // _MIB} MiB)"
    if isinstance(value, str | Path):
        return code(value)
    return code(json.dumps(to_jsonable_python(value)))


def _describe(part: dict[str, Any], named: dict[str, Any]) -> str:
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        inner = named[name]
        return f"table `{name}`" if inner.get("type") == "object" else _describe(inner, named)
    if "allOf" in part:
        return _describe(part["allOf"][0], named)
    if "anyOf" in part:
        some = [_describe(one, named) for one in part["anyOf"] if one != {"type": "null"}]
        return " or ".join(dict.fromkeys(some))
    if "enum" in part:
        return " or ".join(code(one) for one in part["enum"])
    if "const" in part:
        return code(part["const"])
    words = [_type(part, named)]
    words += [f"{sign} {part[key]}" for key, sign in _LIMITS if key in part]
    return ", ".join(words)


def _type(part: dict[str, Any], named: dict[str, Any]) -> str:
    match part.get("type"):
        case "array":
            return f"list of {_describe(part.get('items', {}), named)}"
        case "object":
            inner = part.get("additionalProperties")
            inner = next(iter(part.get("patternProperties", {}).values()), inner)
            return f"map to {_describe(inner, named)}" if isinstance(inner, dict) else "map"
        case "string":
            formats = {"path": "path", "uri": "URL", "password": "secret"}
            return formats.get(part.get("format", ""), "text")
        case None:
            return "any"
        case kind:
            return str(kind)
