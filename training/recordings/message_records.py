"""Records of messages with a reward: rows of fine-tuning data, agents' logs, translated formats."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qguide.training.data.trajectories import Trajectory
from qguide.training.recordings.episode import build_episode
from qguide.training.recordings.fields import Fields, first_at, stated_reward, stated_task, value_at
from qguide.training.recordings.turns import Turns, read_turns

_INSTRUCTIONS = ("system", "instructions")
"""Fields of a request's body that say what a chat's first message says."""


@dataclass(frozen=True, slots=True)
class Places:
    """The places of an episode's parts in a record.

    Attributes:
        rewards: the first one that has a value counts, and so on.
        graded: a reward that is true or false is 1 or 0; else it has to be named.
    """

    messages: str = "messages"
    rewards: tuple[str, ...] = ("reward",)
    tasks: tuple[str, ...] = ("task_id",)
    sources: tuple[str, ...] = ("source",)
    graded: bool = False


MESSAGES = Places()
PLAIN = Places(graded=True)
"""Those of a translated record, whose format says that its reward is one."""


def read_message_record(
    record: Mapping[str, Any],
    fields: Fields,
    places: Places = MESSAGES,
    *,
    told: Mapping[str, Any] | None = None,
) -> Trajectory:
    """The episode of a record such as `{"messages": […], "reward": …, "task_id": …}`.

    Args:
        told: the record as it was before a translation, in which the operator names places.
    """
    told = record if told is None else told
    turns = _turns(record, fields, places, told)
    task_id = stated_task(told, fields.task) if fields.task else stated_task(record, *places.tasks)
    own = first_at(record, places.rewards)
    source = first_at(record, places.sources)
    return build_episode(
        turns.messages,
        reward=stated_reward(
            told,
            fields,
            own=float(own) if places.graded and isinstance(own, bool) else own,
            place=places.rewards[0],
            task_id=task_id,
        ),
        task_id=task_id,
        terminated=record.get("terminated", True) is not False,
        source=source if isinstance(source, str) else "",
        ignored=turns.ignored,
        left_out=turns.left_out + Counter(record.get("left_out") or {}),
    )


def _turns(
    record: Mapping[str, Any], fields: Fields, places: Places, told: Mapping[str, Any]
) -> Turns:
    """The messages, with the instructions that a request's body has beside them."""
    if fields.messages:
        turns = read_turns(value_at(told, fields.messages), fields.messages)
    else:
        turns = read_turns(value_at(record, places.messages), places.messages)
    said = first_at(record, _INSTRUCTIONS)
    begins = turns.messages[0].role if turns.messages else ""
    if said and isinstance(said, str | list) and begins not in ("system", "developer"):
        instructed = Turns()
        instructed.add({"role": "system", "content": said}, "system")
        turns.messages[:0] = instructed.messages
        turns.ignored = {index + len(instructed.messages) for index in turns.ignored}
    return turns
