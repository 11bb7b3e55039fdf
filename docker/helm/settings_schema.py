"""The chart's schema of `settings`, made from the server's own; `make helm-schema` writes it.

So helm refuses a setting that is misspelt or out of range, in place of a pod that never starts.
"""

import json
from pathlib import Path
from typing import Any

from server.settings.settings import Settings

SCHEMA = Path(__file__).with_name("qguide") / "values.schema.json"
KEPT_OUT = ("title", "description", "default", "format", "writeOnly")


def with_settings(schema: dict[str, Any]) -> dict[str, Any]:
    """The chart's schema with `definitions` of today's settings."""
    made = _plain(Settings.model_json_schema())
    parts = made.pop("$defs")
    for part in parts.values():
        if "api_key" in part["properties"]:
            part["properties"]["api_key_secret"] = {"$ref": "#/definitions/secretKey"}
    return schema | {"definitions": schema["definitions"] | {"settings": made} | parts}


def _plain(node: Any) -> Any:
    """In the words of draft 7, which every helm 3 knows, and without what only people read.

    No value is null in a chart: null takes a value away.
    """
    if isinstance(node, list):
        return [_plain(one) for one in node]
    if not isinstance(node, dict):
        return node.replace("#/$defs/", "#/definitions/") if isinstance(node, str) else node
    some = [one for one in node.get("anyOf", ()) if one != {"type": "null"}]
    if len(some) == 1:
        return _plain(some[0])
    kept = {name: _plain(value) for name, value in node.items() if name not in KEPT_OUT}
    if "properties" in node:  # what these are called is no word of a schema's
        kept["properties"] = {name: _plain(one) for name, one in node["properties"].items()}
    return kept


def main() -> None:
    """Write it."""
    schema = with_settings(json.loads(SCHEMA.read_text()))
    SCHEMA.write_text(json.dumps(schema, indent=2) + "\n")


if __name__ == "__main__":
    main()
