"""Error tree of QGuide.

QGuideError
├── InvalidRequestError          a request that cannot be served as it is
│   ├── MalformedHistoryError    roles or contents out of order
│   ├── InvalidCandidatesError   empty or duplicate candidates, M out of range
│   ├── HistoryTooLongError      more tokens than the model's context
│   ├── UnknownModelError        no policy or Q model of that name
│   ├── UnknownEpisodeError      no step of such an episode is known
│   ├── EpisodeClosedError       the episode has ended, or ended otherwise
│   ├── EpisodeFullError         no more steps of the episode can be kept for its record
│   ├── UnsupportedParameterError  a parameter that the policy does not support
│   └── UpstreamRefusedError     a request that the upstream refused
├── RenderingError               a chat template that leaves out what was said
├── CheckpointError              a checkpoint whose manifest, hash or shapes do not match
│   └── OutdatedFeaturesError    a learned Q model reads features that this release does not make
├── RoutingError                 a change that would let a name lead nowhere, or to two Q models
├── ScorerUnavailableError       no Q can be given: a dead scorer, a full queue, or no time left
│   ├── OutOfDomainError         a state of another kind than the Q model was trained on
│   ├── DeadlineExceededError    the time was up while candidates were drawn or scored
│   ├── OverloadedError          the queue is full
│   ├── UnscorableError          the trunk's server refused this input
│   ├── JudgeAnswerError         a judge's answer holds no score
│   ├── JudgeRefusedError        a judge's upstream refused the question
│   ├── JudgeBusyError           a judge's upstream takes no more requests now
│   └── JudgeBudgetError         a judge's budget is spent
├── UpstreamError                an upstream answered with an error, or not with a completion
│   ├── UpstreamTimeoutError     it did not answer in time
│   ├── UpstreamUnknownModelError it does not know the model or the path
│   ├── UpstreamUnavailableError it cannot be reached, is busy, or its circuit is open
│   │   └── UpstreamBusyError    it takes no more requests now: 429
│   └── UpstreamLostError        a job has waited for it in vain
├── EnvironmentFailureError      a game or its engine failed
│   └── InvalidGameError         a game file that the engine cannot play
├── EmptyTreeError               a tree without any action
├── RecordError                  a row of an artefact that does not match its schema
├── StageFailedError             a stage of a pipeline ended with an error
├── ProcessLostError             another process of a training ended or cannot be reached
└── ConfigError                  a job's or server's configuration that cannot be run
"""

import re
from typing import Final

HIDDEN: Final = "…"
_SUSPECT: Final = re.compile(r"//|[@?]")
_SCHEME: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_HOST: Final = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]")
"""Patterns of addresses, which errors name without what may be a user, a password or a key."""


class QGuideError(Exception):
    """Root of the tree."""


class InvalidRequestError(QGuideError):
    """A request that cannot be served as it is."""


class MalformedHistoryError(InvalidRequestError):
    """Roles or contents of the messages are out of order."""


class InvalidCandidatesError(InvalidRequestError):
    """Empty or duplicate candidates, or a number of them out of range."""


class HistoryTooLongError(InvalidRequestError):
    """A history with more tokens than the model's context takes."""


class UnknownModelError(InvalidRequestError):
    """No policy or Q model of that name is loaded."""


class UnknownEpisodeError(InvalidRequestError):
    """No step of an episode with that id is known."""


class EpisodeClosedError(InvalidRequestError):
    """A step or another reward for an episode that has ended."""


class EpisodeFullError(InvalidRequestError):
    """A step of an episode of which no more can be kept for its record."""


class UnsupportedParameterError(InvalidRequestError):
    """A parameter that the policy does not support."""

    def __init__(self, message: str, *, parameter: str) -> None:
        super().__init__(message)
        self.parameter = parameter


class UpstreamRefusedError(InvalidRequestError):
    """A request that the upstream refused; the message holds its reason.

    Args:
        upstream_code: the upstream's own code, such as `content_policy_violation`; "" if it gave none.
        upstream_type: the upstream's own type of error; "" if it gave none.
        parameter: the invalid field, as the upstream names it; None if it names none.
    """

    def __init__(
        self, message: str, *, upstream_code: str = "", upstream_type: str = "", parameter: str | None = None
    ) -> None:
        super().__init__(message)
        self.upstream_code = upstream_code
        self.upstream_type = upstream_type
        self.parameter = parameter


class RenderingError(QGuideError):
    """A chat template that refuses a conversation, or leaves out what was said in it."""


class CheckpointError(QGuideError):
    """A checkpoint whose manifest, hash or shapes do not match."""


class RoutingError(QGuideError):
    """A change that would let a name lead nowhere, in a circle, or to two Q models at once."""


class OutdatedFeaturesError(CheckpointError):
    """A learned Q model reads features that this version does not make, and never will."""


class ScorerUnavailableError(QGuideError):
    """No Q can be given: the scorer is dead, or gave no usable answer."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class OutOfDomainError(ScorerUnavailableError):
    """A state of another kind than the Q model was trained on.

    Args:
        distance: of it from the Q model's domain, 1 being the limit; None if that is not the reason.
    """

    def __init__(self, message: str, *, distance: float | None = None) -> None:
        super().__init__(message)
        self.distance = distance


class DeadlineExceededError(ScorerUnavailableError):
    """The request's time was up; the message says if candidates were being drawn or scored."""


class UpstreamError(QGuideError):
    """An upstream answered with an error, or with something that is not a completion.

    Args:
        retry_after_s: when it may be worth asking again; None if unknown.
        retriable: asking again at once may help and can do no harm.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None, retriable: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.retriable = retriable


class UpstreamUnknownModelError(UpstreamError):
    """An upstream does not know the model or the path that the operator configured."""


class UpstreamTimeoutError(UpstreamError):
    """An upstream did not answer in time."""


class UpstreamUnavailableError(UpstreamError):
    """An upstream cannot be reached, is busy, or its circuit is open after repeated failures."""


class UpstreamBusyError(UpstreamUnavailableError):
    """An upstream takes no more requests now, because of a rate limit or a quota."""

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        retriable: bool = False,
        upstream_code: str = "",
        upstream_type: str = "",
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s, retriable=retriable)
        self.upstream_code = upstream_code
        self.upstream_type = upstream_type


class UpstreamLostError(UpstreamError):
    """An upstream for which a job has waited in vain; the job ends and can be resumed."""


class OverloadedError(ScorerUnavailableError):
    """The queue is full; a later request may find a place."""


class UnscorableError(ScorerUnavailableError):
    """The trunk's server refused its input; in a batch one request may be the cause."""


class JudgeAnswerError(ScorerUnavailableError):
    """A judge's answer holds no score or no order; at DEBUG the log has its beginning."""


class JudgeRefusedError(ScorerUnavailableError):
    """A judge's upstream refused the question; at DEBUG the log has its reason."""


class JudgeBusyError(ScorerUnavailableError):
    """A judge's upstream takes no more requests now, because of a rate limit or a quota."""


class JudgeBudgetError(ScorerUnavailableError):
    """A judge's budget of requests or tokens is spent."""


class EnvironmentFailureError(QGuideError):
    """A game or its engine failed."""


class InvalidGameError(EnvironmentFailureError):
    """A game file that the engine cannot play."""


class EmptyTreeError(QGuideError):
    """A tree without any action."""


class RecordError(QGuideError):
    """A row of an artefact that does not match its schema."""


class StageFailedError(QGuideError):
    """A stage of a pipeline ended with an error; the message has the end of its log."""


class ProcessLostError(QGuideError):
    """Another process of a training ended, or cannot be reached."""


class ConfigError(QGuideError):
    """A configuration of a job or of the server that cannot be run."""


def without_secrets(text: str) -> str:
    """A text as it is unless it looks like an address, of which only scheme and host are kept.

    Everything up to the last `@` may be a password, and everything after the host a key. If an `@`
    follows a slash or a question mark, nobody can say which is which, and the host is hidden, too.
    """
    if not _SUSPECT.search(text):
        return text
    scheme = _SCHEME.match(text)
    if scheme is None:
        return HIDDEN
    user, at, rest = text[scheme.end() :].rpartition("@")
    host = _HOST.match(rest)
    if host is None or re.search(r"[/?#]", user):
        return scheme[0] + HIDDEN
    hidden = HIDDEN + at if at else ""
    remainder = rest[host.end() :]
    return f"{scheme[0]}{hidden}{host[0]}{'/' + HIDDEN if remainder else ''}"
