"""Results as text: as the benchmark prints them, with their shape, and cut."""

import ast
import re
from collections.abc import Sequence
from typing import Final

from training.environments.intercode_sql.database import ERROR

_CALLS: Final = re.compile(r"(?:Decimal|datetime\.\w+)\([^)]*\)")


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters, and how many were cut."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most} characters more)"


def with_shape(text: str) -> str:
    """A result after its number of records and columns; any other text as it is.

    A small model counts badly, and the shape of a result says much about whether it answers the
    question: "how many" has one record of one column.
    """
    records = parse_records(text)
    if records is None:
        return text
    width = len(records[0]) if records and isinstance(records[0], tuple) else 0
    null = any(isinstance(record, tuple) and None in record for record in records)
    return f"{len(records)} records, {width} columns{', NULL' if null else ''}: {text}"


def parse_records(text: str) -> Sequence[object] | None:
    """The records that a text prints; None for an error or anything else.

    Decimals and dates are printed as calls of Python; they become their text.
    """
    if text.startswith(ERROR):
        return None
    try:
        records = ast.literal_eval(_CALLS.sub(lambda call: repr(call.group()), text))
    except (ValueError, SyntaxError):
        return None
    return records if isinstance(records, list) else None
