"""Errors of an upstream as what they mean to the caller."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import httpx

from qguide.qnet.errors import (
    HistoryTooLongError,
    QGuideError,
    UpstreamBusyError,
    UpstreamError,
    UpstreamRefusedError,
    UpstreamUnavailableError,
    UpstreamUnknownModelError,
)
from qguide.qnet.policies.answer_parsing import parse
from qguide.qnet.policies.answers import Refusal, read_refusal, retry_after_s

FORBIDDEN: Final = (401, 403)


_REFUSED: Final = (400, 413, 422)
_UNKNOWN: Final = 404
_BUSY: Final = 429
_OVERLOADED: Final = (503, 529)
_PASSING: Final = (408, 502, 504)
_QUOTA: Final = "insufficient_quota"
_PASSING_KINDS: Final = frozenset(("overloaded_error", "server_error"))
_BUSY_KINDS: Final = frozenset(("rate_limit_error", "rate_limit_exceeded", "RESOURCE_EXHAUSTED"))
_OF_STREAMS: Final = re.compile(r"\bstream(s|ing|ed|_options)?\b", re.IGNORECASE)
_NOT_TAKEN: Final = re.compile(
    r"unrecogni[sz]ed|unknown|unsupported|unexpected|deprecated|extra inputs"
    r"|(not|cannot) (both |be )*(support|permit|allow|specif)",
    re.IGNORECASE,
)
"""Words of a refusal of the parameter itself, and not of its value."""
_STREAM: Final = "stream"
_SPARE: Final[Mapping[str, Sequence[str]]] = {
    _STREAM: (_STREAM, "stream_options"),
    "top_k": ("top_k",),
    "min_p": ("min_p",),
    "typical_p": ("typical_p",),
    "repetition_penalty": ("repetition_penalty",),
    "top_p": ("top_p",),
    "temperature": ("temperature",),
    "verbosity": ("verbosity", "text.verbosity"),
    "reasoning_effort": ("reasoning_effort",),
    "effort": ("output_config.effort",),
    "thinking": ("thinking", "context_management", "generationConfig.thinkingConfig"),
    "summary": ("reasoning.summary",),
    "reasoning": ("reasoning",),
}
"""Parameters that clients send unasked and some upstreams refuse, and their fields: the stream, the
spread of the candidates, thoughts and effort. An answer is right without."""


async def failure_of(response: httpx.Response, name: str, *, is_patient: bool) -> QGuideError:
    """The error that an answer other than a 200 means; to a patient caller any failure of the server's may pass."""
    status = response.status_code
    if status in FORBIDDEN:
        return UpstreamError(f"upstream {name} refused this server's key with {status}")
    refusal = await parse(read_refusal, response.content)
    if status in _REFUSED:
        message = f"upstream {name} refused: {refusal.reason}"
        if refusal.exceeds_context:
            return HistoryTooLongError(message)
        return UpstreamRefusedError(
            message, upstream_code=refusal.code, upstream_type=refusal.kind, parameter=refusal.parameter
        )
    wait_s = retry_after_s(response.headers.get("retry-after"))
    if status == _BUSY:
        used_up = refusal.code == _QUOTA  # which does not come back within a request's time
        why = f"refuses this server's key, whose quota is used up ({_QUOTA}); the operator has to raise it"
        return UpstreamBusyError(
            f"upstream {name} {why if used_up else 'takes no more requests now; try later'}",
            retry_after_s=wait_s,
            retriable=is_patient or not used_up,
            upstream_code=refusal.code,
            upstream_type=refusal.kind,
        )
    if status == _UNKNOWN:
        return UpstreamUnknownModelError(f"upstream {name} does not know its model or its path: {refusal.reason}")
    if status in _OVERLOADED:
        return UpstreamUnavailableError(
            f"upstream {name} answered with {status}: it is overloaded or down; try later",
            retry_after_s=wait_s,
            retriable=True,
        )
    return UpstreamError(
        f"upstream {name} answered with {status}",
        retry_after_s=wait_s,
        retriable=status in _PASSING or (is_patient and response.is_server_error),
    )


def refused_parameters(error: UpstreamRefusedError, sent: Mapping[str, Any]) -> set[frozenset[str]]:
    """Parameters of a request that were refused as such, and without which an answer is still one.

    Each is alone, unless it was refused only beside others.
    """
    _, _, reason = str(error).partition(" refused: ")
    said = f"{error.parameter or ''} {error.upstream_code} {reason}"
    if _STREAM in sent and _OF_STREAMS.search(said):
        return {frozenset((_STREAM,))}
    if not _NOT_TAKEN.search(said):
        return set()
    named = {name for name in _SPARE if re.search(rf"(?<![a-z_]){name}\b", said) and _fields_of(name, sent)}
    if "summary" in named:
        named.discard("reasoning")  # `reasoning.summary` has both names
    together = len(named) > 1 and "both" in said
    return {frozenset(named)} if together else {frozenset((name,)) for name in named}


def without_refused(
    body: Mapping[str, Any], refused: Iterable[frozenset[str]]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The request without what was refused (of a group the first alone), and the names of that but for the stream."""
    sent, left_out = dict(body), []
    for group in refused:
        if all(_fields_of(name, sent) for name in group):
            first = min(group, key=list(_SPARE).index)
            for field, inner in _fields_of(first, sent):
                given = sent.pop(field)
                if inner and (rest := {name: value for name, value in given.items() if name != inner}):
                    sent[field] = rest
            left_out.append(first)
    return sent, tuple(name for name in left_out if name != _STREAM)


def _fields_of(name: str, sent: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Fields of a request that go with a parameter, each with the name inside of it; "" for all of it."""
    return [
        (field, inner)
        for field, _, inner in (place.partition(".") for place in _SPARE[name])
        if field in sent and (not inner or inner in (sent[field] or ()))
    ]


def stream_failure(refusal: Refusal, name: str) -> QGuideError:
    """The error that an event of a stream tells, whose status was 200."""
    if refusal.exceeds_context:
        return HistoryTooLongError(f"upstream {name} refused: {refusal.reason}")
    if not _BUSY_KINDS.isdisjoint((refusal.kind, refusal.code)):
        return UpstreamBusyError(
            f"upstream {name} takes no more requests now and broke off its answer; try later",
            retriable=True,
            upstream_code=refusal.code,
            upstream_type=refusal.kind,
        )
    kind = refusal.kind or refusal.code
    return UpstreamUnavailableError(
        f"upstream {name} broke off its answer with an error{f' ({kind})' if kind else ''}",
        retriable=kind in _PASSING_KINDS,
    )
