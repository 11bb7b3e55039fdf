"""Errors of Gemini's API."""

from typing import Final, Literal

from pydantic import BaseModel, Field

from qguide.server.http.error_bodies import HISTORY_TOO_LONG, Failure, Told

_STATUSES: Final = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    504: "DEADLINE_EXCEEDED",
}


class GeminiErrorReason(BaseModel):
    """Our code of an error, where Google's clients look for a reason."""

    type_: str = Field(alias="@type")
    reason: str
    domain: Literal["qguide"]
    metadata: dict[str, str]


class GeminiErrorDetail(BaseModel):
    """Google's error object."""

    code: int
    message: str
    status: str
    details: list[GeminiErrorReason]


class GeminiErrorBody(BaseModel):
    """Error response of these routes."""

    error: GeminiErrorDetail


def error_of(failure: Failure) -> Told:
    """An error in this format; our code is the reason in `details`, with the figures as texts beside the id."""
    status, message = failure.status, failure.message
    kind = _STATUSES.get(status, "UNAVAILABLE" if status >= 500 else "INVALID_ARGUMENT")
    if failure.code == HISTORY_TOO_LONG:
        message = f"The input token count exceeds the maximum number of tokens allowed: {message}"
    figures = {name: str(figure) for name, figure in (failure.figures or {}).items()}
    reason = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": failure.code,
        "domain": "qguide",
        "metadata": {"request_id": failure.request_id} | figures,
    }
    return status, {"error": {"code": status, "message": message, "status": kind, "details": [reason]}}
