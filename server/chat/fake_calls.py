"""Calls of tools that the fake upstream makes from their schemas."""

import json
import uuid
from typing import Any

from qguide.server.streaming.events import Json


def made_call(tool: Json, k: int) -> Json:
    """A call of a tool."""
    call = {"id": f"call_{uuid.uuid4().hex}", "type": tool["type"]}
    if tool["type"] == "custom":
        return call | {"custom": {"name": tool["custom"]["name"], "input": f"input {k}"}}
    function = tool["function"]
    schema = function.get("parameters") or {}
    arguments = {
        name: _argument(name, kind, k) for name, kind in schema.get("properties", {}).items()
    }
    return call | {"function": {"name": function["name"], "arguments": json.dumps(arguments)}}


def _argument(name: str, schema: Json, k: int) -> Any:
    if values := schema.get("enum") or schema.get("examples"):
        return values[k % len(values)]
    match schema.get("type"):
        case "integer" | "number":
            return k
        case "boolean":
            return k % 2 == 0
        case "array":
            return []
        case "object":
            return {}
    return f"{name} {k}"
