"""JSON schema of the chart's `settings`, generated from the server's (`make helm-schema`).

With it helm refuses a misspelt or out-of-range setting, instead of starting a pod that fails.
"""

import json
from pathlib import Path
from typing import Any

from qguide.server.settings.settings import Settings

SCHEMA = Path(__file__).with_name("qguide") / "values.schema.json"
KEPT_OUT = ("title", "description", "default", "format", "writeOnly")


def with_settings(schema: dict[str, Any]) -> dict[str, Any]:
    """The chart's schema with the `definitions` of the current settings."""
    made = _plain(Settings.model_json_schema())
    parts = made.pop("$defs")
    for part in parts.values():
        if "api_key" in part.get("properties", ()):
            part["properties"]["api_key_secret"] = {"$ref": "#/definitions/secretKey"}
    return schema | {"definitions": schema["definitions"] | {"settings": made} | parts}


def _plain(node: Any) -> Any:
    """Convert to JSON schema draft 7, which every helm 3 supports, without titles and texts.

    Null types are removed, because null deletes a value in helm.
    """
    if isinstance(node, list):
        return [_plain(one) for one in node]
    if not isinstance(node, dict):
        return node.replace("#/$defs/", "#/definitions/") if isinstance(node, str) else node
    some = [one for one in node.get("anyOf", ()) if one != {"type": "null"}]
    if len(some) == 1:
        return _plain(some[0])
    kept = {name: _plain(value) for name, value in node.items() if name not in KEPT_OUT}
    if "properties" in node:  # names of properties are not schema keywords
        kept["properties"] = {name: _plain(one) for name, one in node["properties"].items()}
    return kept


def main() -> None:
    """Write the chart's schema."""
    schema = with_settings(json.loads(SCHEMA.read_text()))
    SCHEMA.write_text(json.dumps(schema, indent=2) + "\n")


if __name__ == "__main__":
    main()
