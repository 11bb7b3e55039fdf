"""The OpenAPI schema of an answer that may be a stream of events."""

from typing import Any

from pydantic import BaseModel


def answer_or_events(
    answer: type[BaseModel] | type[list[Any]],
    event: type[BaseModel],
    *,
    description: str,
    event_description: str,
    named: bool = True,
) -> dict[str, Any]:
    """Status 200 of a route that answers in JSON or, with `stream`, in server-sent events."""
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"$ref": f"#/components/schemas/{event.__name__}"},
    }
    properties = {"event": {"type": "string"}, "data": data} if named else {"data": data}
    schema = {
        "description": event_description,
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }
    return {
        "description": description,
        "model": answer,
        "content": {"text/event-stream": {"schema": schema}},
    }
