"""Fields of a recording that its operator names."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fields:
    """Names of the reward and the task id: fields of a record, or attributes of a span.

    Attributes:
        reward: "" takes the format's own.
        task: "" takes the format's own.
        default_reward: of a record without one; None refuses it.
    """

    reward: str = ""
    task: str = ""
    default_reward: float | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The named field of the task id, if there is one."""
        return (self.task,) if self.task else ()
