"""The bytes of server-sent events. Pure."""

import json
from collections.abc import Mapping
from typing import Any, Final

DONE: Final = b"data: [DONE]\n\n"
HEARTBEAT: Final = b": still working\n\n"
"""A comment that clients skip; it shows proxies that the connection is alive."""


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """One server-sent event.

    Args:
        name: its `event:` line; "" for none.
    """
    head = f"event: {name}\n".encode() if name else b""
    written = json.dumps(data, ensure_ascii=False).encode(errors="replace")
    return head + b"data: " + written + b"\n\n"
