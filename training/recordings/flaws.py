"""Flaws that a schema finds in a record, without any of the record's text, which may be private."""

from pydantic import ValidationError


def flaw_of(error: ValidationError, place: str = "") -> str:
    """The first flaw that a schema found, without any text or field name of the record."""
    first = error.errors(include_input=False, include_context=False)[0]
    unknown = first["type"] == "extra_forbidden"
    names = [str(part) for part in first["loc"][: -1 if unknown else None]]
    where = ".".join([place, *names] if place else names) or "the record"
    return f"{where}: {'has an unknown field' if unknown else first['msg']}"
