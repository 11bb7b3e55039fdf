"""Compacted histories of the Responses API: an item that stands for what was said before. Pure."""

import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final

from qguide.qnet.dialects.shapes import Json

COMPACTIONS: Final = ("compaction", "compaction_summary")
"""Types of the item; Codex sends it back under the second as well."""
_OURS: Final = "qguide:"
"""Begins the content of our own items; only its own server can read another's."""
_BEFORE: Final = "Summary of the conversation so far, whose earlier turns were left out:\n\n"


def compaction_of(summary: str) -> Json:
    """The item that stands for a summarised history."""
    content = _OURS + urlsafe_b64encode(summary.encode()).decode()
    return {"id": f"cmp_{uuid.uuid4().hex}", "type": COMPACTIONS[0], "encrypted_content": content}


def turn_of(item: Mapping[str, Any]) -> Json | None:
    """The turn of a chat that says the same as a compaction; None for another server's."""
    content = item.get("encrypted_content")
    if not isinstance(content, str) or not content.startswith(_OURS):
        return None
    try:
        summary = urlsafe_b64decode(content.removeprefix(_OURS)).decode()
    except ValueError:
        return None
    return {"role": "user", "content": _BEFORE + summary}
