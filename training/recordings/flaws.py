"""Flaws that a schema finds in a record, without any of the record's text, which may be private."""

from typing import Final

from pydantic import ValidationError

from qguide.qnet.errors import RecordError

OTHER_SHAPE: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Raised by a translation that meets a record of another shape than its format's."""


def flaw_of(error: ValidationError, place: str = "") -> str:
    """The first flaw that a schema found, without any text or field name of the record."""
    first = error.errors(include_input=False, include_context=False)[0]
    unknown = first["type"] == "extra_forbidden"
    names = [str(part) for part in first["loc"][: -1 if unknown else None]]
    where = ".".join([place, *names] if place else names) or "the record"
    return f"{where}: {'has an unknown field' if unknown else first['msg']}"


def other_shape(error: Exception) -> RecordError:
    """The error that such a record is refused with; it says nothing of the record's text."""
    return RecordError(f"it does not have the shape of this format ({type(error).__name__})")
