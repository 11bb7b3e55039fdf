"""Openings of trees: the messages before any action, which are the root's state.

Trees of one task id with different openings hold different states, so they are never merged. Each
gets a task id of its own, which ends with a hash of its opening.
"""

import hashlib
import json
from collections.abc import Collection
from typing import Final

from qguide.qnet.records import TreeRow, messages_of
from qguide.qnet.types import History
from qguide.training.trajectory import observation_message

_HASH_CHARACTERS: Final = 12


def opening_hash(system: str | None, opening: History) -> str:
    """Hash of all that a Q model reads before the first action.

    Args:
        system: the leading system message, or None.
    """
    text = json.dumps([system, [message.key for message in opening]])
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARACTERS]


def opening_hash_of_row(row: TreeRow) -> str:
    """Hash of a tree's opening."""
    plain = (observation_message(row.first_observation),)
    return opening_hash(row.system, messages_of(row.opening) or plain)


def split_task_id(task_id: str, digest: str, *, among: Collection[str]) -> str:
    """Task id of the tree with one of a task's openings.

    Args:
        digest: hash of the tree's opening.
        among: hashes of all openings of the task; a single one leaves the id as it is.
    """
    return f"{task_id}#{digest}" if len(among) > 1 else task_id


def whole_task_id(row: TreeRow) -> str:
    """Task id of a tree without the hash of its opening."""
    return row.task_id.removesuffix(f"#{opening_hash_of_row(row)}")
