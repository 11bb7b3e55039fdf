"""Reference page of the server's error codes."""

import inspect
from typing import Final

from qguide_client import errors as client

from qguide.server.http.error_bodies import OPENAI_CODES
from qguide.server.http.error_table import HTTP_CODES, TABLE
from tools.reference_pages.markdown import code, page, table

_INTRODUCTION: Final = (
    'The body of every error is `{"error": {"code", "message", "request_id"}}`; the routes of '
    "OpenAI's API use OpenAI's format, with OpenAI's code where it has one (in brackets), and keep "
    "the code and type of an upstream's refusal. The message states the value, the limit and the "
    "remedy. 429 and 503 carry `Retry-After`, unless waiting does not help. The last column is the "
    "exception class of the Python client; the TypeScript client uses the same name."
)
_OTHERS: Final = (
    (400, "malformed_request", "The bytes received are not a valid HTTP/1.1 request."),
    (400, "too_many_chunks", "The body arrived in too many chunks."),
    (400, "too_many_pipelined", "Too many requests were pipelined on one connection."),
    (429, "too_many_at_once", "The key has reached its number of concurrent requests."),
    (429, "tokens_used_up", "The key has used up its tokens of the day."),
    (431, "head_too_large", "The request line and headers are too large, or too many."),
    (500, "internal_error", "Unexpected failure; the server's log has the details by request id."),
    (503, "too_many_connections", "This address, or all clients, have too many connections."),
)
_OF_HTTP: Final = {
    "not_found": "There is no such path.",
    "method_not_allowed": "The path does not support this method.",
    "websocket_unsupported": "The path takes POST and, if the operator allows any, WebSockets.",
}


def errors_page() -> str:
    """Table of the status, code, meaning and client class of every error."""
    rows = [(status, name, _meaning(kind)) for kind, (status, name) in TABLE.items()]
    rows += [(status, name, _OF_HTTP.get(name, "")) for status, name in HTTP_CODES.items()]
    rows += _OTHERS
    cells = [
        (str(status), _codes(name), meaning, code(client.class_of(status, name).__name__))
        for status, name, meaning in sorted(rows)
    ]
    return page("Errors", _INTRODUCTION, table(("status", "code", "meaning", "client class"), cells))


def _codes(name: str) -> str:
    """Our code, and OpenAI's where it differs."""
    theirs = OPENAI_CODES.get(name)
    return f"{code(name)} ({code(theirs)})" if theirs else code(name)


def _meaning(kind: type[Exception]) -> str:
    return inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
