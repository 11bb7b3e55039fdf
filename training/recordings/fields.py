"""Places in a recording that its operator names."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Fields:
    """Places of messages, reward and task id: keys of a record, or attributes of a span.

    Attributes:
        reward: "" takes the format's own.
        task: "" takes the format's own.
        default_reward: of a record without one; None refuses it.
        messages: "" takes the format's own.
        outcomes: rewards by task id, for records without one.
        episodes: ids of the served episodes that are read; empty: all.
    """

    reward: str = ""
    task: str = ""
    default_reward: float | None = None
    messages: str = ""
    outcomes: Mapping[str, float] = field(default_factory=dict)
    episodes: frozenset[str] = frozenset()

    @property
    def tasks(self) -> tuple[str, ...]:
        """The named place of the task id, if there is one."""
        return (self.task,) if self.task else ()
