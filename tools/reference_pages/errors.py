"""The page of the errors that the server answers with."""

import inspect
from typing import Final

from qguide_client import errors as client

from server.errors.table import HTTP_CODES, TABLE
from tools.reference_pages.markdown import code, page, table

_INTRODUCTION: Final = (
    'The body of every error is `{"error": {"code", "message", "request_id"}}`; on the routes of '
    "OpenAI's API it has OpenAI's shape. The message states the value, the limit and the remedy. "
    "429 and 503 carry `Retry-After`. The last column is the class that the Python client raises; "
    "the TypeScript client's has the same name."
)
_OTHERS: Final = (
    (400, "malformed_request", "What came is no request of HTTP/1.1."),
    (429, "too_many_at_once", "This key has as many requests in flight as it may."),
    (429, "tokens_used_up", "This key's tokens of the day are used up."),
    (431, "head_too_large", "The request line and the headers are too long, or too many."),
    (500, "internal_error", "A failure that nobody foresaw; the log has the request's id."),
    (503, "too_many_connections", "This address, or all together, have too many connections."),
)
_OF_HTTP: Final = {
    "not_found": "There is no such path.",
    "method_not_allowed": "The path exists, for another method.",
}


def errors_page() -> str:
    """Status, code, meaning and client class of every error."""
    rows = [(status, told, _meaning(kind)) for kind, (status, told) in TABLE.items()]
    rows += [(status, told, _OF_HTTP.get(told, "")) for status, told in HTTP_CODES.items()]
    rows += _OTHERS
    found = [
        (str(status), code(told), meaning, code(client.class_of(status, told).__name__))
        for status, told, meaning in sorted(rows)
    ]
    return page(
        "Errors", _INTRODUCTION, table(("status", "code", "meaning", "client class"), found)
    )


def _meaning(kind: type[Exception]) -> str:
    return inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
