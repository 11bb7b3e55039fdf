"""Everything that QGuide raises on purpose.

QGuideError
├── InvalidRequestError          the caller's input cannot be served
│   ├── MalformedHistoryError    roles or contents out of order
│   ├── InvalidCandidatesError   empty or duplicate candidates, M out of range
│   ├── HistoryTooLongError      more tokens than the model's context
│   └── UnknownModelError        no policy or Q model of that name
├── RenderingError               a chat template that does not extend its own prefix
├── CheckpointError              a checkpoint whose manifest, hash or shapes do not match
├── RoutingError                 a name of Q models that would lead nowhere, or to two things
├── ScorerUnavailableError       the scoring worker or its trunk's server is dead, full or too late
│   └── OverloadedError          as many requests wait as may
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


class RenderingError(QGuideError):
    """A chat template whose rendering does not extend its own prefix."""


class CheckpointError(QGuideError):
    """A checkpoint whose manifest, hash or shapes do not match."""


class RoutingError(QGuideError):
    """A change after which a name would lead to no Q model, in a circle or to two things."""


class ScorerUnavailableError(QGuideError):
    """The scoring worker or its trunk's server is dead, its queue full or the deadline past."""


class OverloadedError(ScorerUnavailableError):
    """As many requests wait as may; one that comes later may find a place."""


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
