"""Events of a message stream. Pure."""

import json
from collections.abc import Iterator
from typing import Any

from qguide.server.streaming.events import Json, pieces_of


def events_of(message: Json) -> Iterator[Json]:
    """Split a finished message into the events of a stream.

    Args:
        message: the response body to the same request without `stream`. Its `qguide` is in the
            first event, where the SDK's own assembly of a stream keeps it.
    """
    usage = message["usage"]
    head = message | {
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage | {"output_tokens": 0},
    }
    yield {"type": "message_start", "message": head}
    for index, block in enumerate(message["content"]):
        opening, deltas = _parts_of(block)
        yield {"type": "content_block_start", "index": index, "content_block": opening}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": end, "usage": usage}
    yield {"type": "message_stop"}


def _parts_of(block: Json) -> tuple[Json, list[dict[str, Any]]]:
    """A block without its content, and its content in pieces."""
    match block["type"]:
        case "text":
            deltas = [
                {"type": "text_delta", "text": piece}
                for piece in pieces_of(block.get("text") or "")
            ]
            return block | {"text": ""}, deltas
        case "thinking":
            thoughts = pieces_of(block.get("thinking") or "")
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in thoughts]
            signed = {"type": "signature_delta", "signature": block.get("signature") or ""}
            return block | {"thinking": "", "signature": ""}, [*deltas, signed]
    if "input" not in block:  # an upstream's own block of another type
        return block, []
    filled = json.dumps(block["input"], ensure_ascii=False)
    return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": filled}]
