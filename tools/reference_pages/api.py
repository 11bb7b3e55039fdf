"""Reference page of the HTTP API, and the OpenAPI document."""

from typing import Any, Final

from qguide.server.app import create_app
from qguide.server.settings.settings import Settings
from tools.reference_pages.markdown import code, page, table

_INTRODUCTION: Final = (
    "All endpoints and the fields of their bodies. The machine-readable version is "
    "[openapi.json](openapi.json); a running server has it at `/openapi.json`, and an interactive "
    "page at `/docs`. The admin routes (`/v1/models/load`, `drop`, `alias`, `shadow`, "
    "`GET /v1/episodes` and `POST /v1/learning`) exist only if `QGUIDE_ADMIN` is set, and "
    "`/v1/learning` if `QGUIDE_LEARN` is."
)
_METHODS: Final = ("get", "post")


def api_document() -> dict[str, Any]:
    """The OpenAPI document of a server with every route."""
    return create_app(Settings(admin=True, learn=True, playground=False)).openapi()


def api_page(document: dict[str, Any]) -> str:
    """Table of the endpoints, then the schemas of their bodies."""
    parts = [_INTRODUCTION, "## Endpoints", _endpoints(document)]
    schemas = document["components"]["schemas"]
    parts.append("## Bodies")
    for name, schema in sorted(schemas.items()):
        if schema.get("properties"):
            parts += [f"### {name}", _first_line(schema), _fields(schema)]
        elif "oneOf" in schema:
            parts += [f"### {name}", _first_line(schema), f"{_type(schema)}."]
    return page("HTTP API", *[part for part in parts if part])


def _endpoints(document: dict[str, Any]) -> str:
    rows = []
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                one = methods[method]
                request = _link(one.get("requestBody", {}).get("content", {}))
                response = _link(one["responses"].get("200", {}).get("content", {}))
                summary = str(one.get("description") or one.get("summary", "")).partition("\n")[0]
                rows.append((code(f"{method.upper()} {path}"), summary, request, response))
    return table(("endpoint", "description", "request", "response"), rows)


def _link(content: dict[str, Any]) -> str:
    schema = content.get("application/json", {}).get("schema", {})
    return _type(schema) if schema else ""


def _fields(schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        (code(name), _type(part), "required" if name in required else _default(part), str(part.get("description", "")))
        for name, part in schema["properties"].items()
    ]
    return table(("field", "type", "default", "meaning"), rows)


def _default(part: dict[str, Any]) -> str:
    value = part.get("default")
    return "" if value is None else code(value if isinstance(value, str) else _json(value))


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(part: dict[str, Any]) -> str:
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in part:
            return " or ".join(dict.fromkeys(_type(one) for one in part[key]))
    if "enum" in part:
        return " or ".join(code(one) for one in part["enum"])
    if "const" in part:
        return code(part["const"])
    if part.get("type") == "array":
        return f"list of {_type(part.get('items', {}))}"
    return str(part.get("type", "any"))


def _first_line(schema: dict[str, Any]) -> str:
    return str(schema.get("description", "")).partition("\n\n")[0]
