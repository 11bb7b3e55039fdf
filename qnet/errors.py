"""Everything that QGuide raises on purpose.

QGuideError
├── InvalidRequestError          the caller's input cannot be served
│   ├── MalformedHistoryError    roles or contents out of order
│   ├── InvalidCandidatesError   empty or duplicate candidates, M out of range
│   ├── HistoryTooLongError      more tokens than the model's context
│   ├── UnknownModelError        no policy or Q model of that name
│   ├── UnknownEpisodeError      no step of such an episode is remembered
│   ├── EpisodeClosedError       the episode has ended, or ended otherwise
│   ├── UnsupportedParameterError  what the policy that was asked cannot do
│   └── UpstreamRefusedError     an upstream says that the request is wrong
├── RenderingError               a chat template that does not extend its own prefix
├── CheckpointError              a checkpoint whose manifest, hash or shapes do not match
├── RoutingError                 a name of Q models that would lead nowhere, or to two things
├── ScorerUnavailableError       the scoring worker or its trunk's server is dead, full or too late
│   ├── OverloadedError          as many requests wait as may
│   └── UnscorableError          the trunk's server refuses this input; it may take others
├── UpstreamError                an upstream answered with a failure, or with what is no answer
│   ├── UpstreamTimeoutError     it was silent for too long
│   └── UpstreamUnavailableError it cannot be reached, is busy, or failed so often that it rests
├── EnvironmentFailureError      a game or its engine failed
│   └── InvalidGameError         a game file that the engine cannot play
├── EmptyTreeError               a tree without any action
├── RecordError                  a row of an artefact that does not match its schema
└── ConfigError                  a job's or server's configuration that cannot be run
"""


class QGuideError(Exception):
    """Root of the tree."""


class InvalidRequestError(QGuideError):
    """The caller's input cannot be served."""


class MalformedHistoryError(InvalidRequestError):
    """Roles or contents of the messages are out of order."""


class InvalidCandidatesError(InvalidRequestError):
    """Empty or duplicate candidates, or a number of them out of range."""


class HistoryTooLongError(InvalidRequestError):
    """More tokens than the model's context takes."""


class UnknownModelError(InvalidRequestError):
    """No policy or Q model of that name is loaded."""


class UnknownEpisodeError(InvalidRequestError):
    """No step of an episode of that id is remembered."""


class EpisodeClosedError(InvalidRequestError):
    """A step or another reward for an episode that has ended."""


class UnsupportedParameterError(InvalidRequestError):
    """The policy that was asked cannot do what a parameter wants.

    Args:
        parameter: its name.
    """

    def __init__(self, message: str, *, parameter: str) -> None:
        super().__init__(message)
        self.parameter = parameter


class UpstreamRefusedError(InvalidRequestError):
    """An upstream says that the request is wrong; its reason is the caller's to read."""


class RenderingError(QGuideError):
    """A chat template whose rendering does not extend its own prefix."""


class CheckpointError(QGuideError):
    """A checkpoint whose manifest, hash or shapes do not match."""


class RoutingError(QGuideError):
    """A change after which a name would lead to no Q model, in a circle or to two things."""


class ScorerUnavailableError(QGuideError):
    """The scoring worker or its trunk's server is dead, its queue full or the deadline past."""


class UpstreamError(QGuideError):
    """An upstream answered with a failure, or with what is no answer.

    Args:
        retry_after_s: when it may be worth asking again; None: nobody knows.
        retriable: asking again at once may help and can do no harm.
    """

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, retriable: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.retriable = retriable


class UpstreamTimeoutError(UpstreamError):
    """An upstream was silent for too long."""


class UpstreamUnavailableError(UpstreamError):
    """An upstream cannot be reached, is busy, or failed so often that it is left alone."""


class OverloadedError(ScorerUnavailableError):
    """As many requests wait as may; one that comes later may find a place."""


class UnscorableError(ScorerUnavailableError):
    """The trunk's server refuses what it was sent; of a batch that may be one request's fault."""


class EnvironmentFailureError(QGuideError):
    """A game or its engine failed."""


class InvalidGameError(EnvironmentFailureError):
    """A game file that the engine cannot play."""


class EmptyTreeError(QGuideError):
    """A tree without any action."""


class RecordError(QGuideError):
    """A row of an artefact that does not match its schema."""


class ConfigError(QGuideError):
    """A job's configuration that cannot be run."""
