"""API keys in the OpenAPI document: how a request carries one, and which endpoints take none."""

from typing import Any, Final

from qguide.server.access.admission import HEALTH, KEY_HEADERS

_SCHEMES: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer KEY`"},
    **{name: {"type": "apiKey", "in": "header", "name": name} for name in KEY_HEADERS},
}
_OPEN: Final = HEALTH | {"/playground/abilities"}


def declare_keys(document: dict[str, Any], *, required: bool) -> None:
    """Declare the headers that may hold a key.

    Args:
        document: the OpenAPI document, changed in place.
        required: the server has keys; otherwise any request is served without one.
    """
    document["components"]["securitySchemes"] = _SCHEMES
    alternatives: list[dict[str, list[str]]] = [{name: []} for name in _SCHEMES]
    document["security"] = alternatives if required else [{}, *alternatives]
    for path in _OPEN & document["paths"].keys():
        for operation in document["paths"][path].values():
            operation["security"] = []
