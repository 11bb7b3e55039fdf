"""Episodes as `sft` imitates them, read from trajectory rows."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from qguide.qnet.action_key import message_key
from qguide.qnet.errors import RecordError
from qguide.qnet.types import Message
from qguide.training.data.records import TrajectoryRow, messages_of
from qguide.training.data.runs import RunFolder, read_rows


class Demonstration(NamedTuple):
    """An episode, and the indices of those of its actions that must not be imitated.

    Attributes:
        weight: of all its tokens in the loss; an episode of weight 2 counts as two.
    """

    messages: Sequence[Message]
    mistakes: tuple[int, ...] = ()
    weight: float = 1.0


def read_demonstrations(
    folders: Iterable[Path], *, distinct: bool = False, reward_weighted: bool = False
) -> list[Demonstration]:
    """The episodes of these run folders, in order.

    Args:
        folders: run folders of `collect`.
        distinct: leave out an episode whose sequence of actions, whatever their thoughts, is that
            of an earlier episode of the same task (RFT).
        reward_weighted: the outcome reward is the episode's weight (AgentEvol); an episode of
            reward 0 is left out.
    """
    rows: Iterable[TrajectoryRow] = (
        row for folder in folders for row in read_rows(RunFolder(folder).rows, TrajectoryRow)
    )
    if distinct:
        rows = _distinct(rows)
    if not reward_weighted:
        return [Demonstration(messages_of(row.messages), row.mistakes) for row in rows]
    weighted = ((row, _weight(row)) for row in rows)
    return [Demonstration(messages_of(r.messages), r.mistakes, w) for r, w in weighted if w]


def _distinct(rows: Iterable[TrajectoryRow]) -> Iterable[TrajectoryRow]:
    seen: set[tuple[str, str, tuple[str, ...]]] = set()
    for row in rows:
        replies = (m for m in messages_of(row.messages) if m.role == "assistant")
        key = (row.environment, row.task_id, tuple(map(message_key, replies)))
        if key not in seen:
            seen.add(key)
            yield row


def _weight(row: TrajectoryRow) -> float:
    if row.outcome_reward < 0:
        raise RecordError(
            f"the episode of {row.task_id} has the reward {row.outcome_reward}, which cannot be a "
            "weight; set reward_weighted to false, or collect with rewards from 0 up"
        )
    return row.outcome_reward
