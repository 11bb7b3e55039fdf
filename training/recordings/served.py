"""Episodes that the server recorded (`QGUIDE_EPISODES_DIR`): rows of trees with a single path."""

from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from qguide.qnet.errors import RecordError
from qguide.qnet.records import TreeRow
from qguide.qnet.types import Message
from qguide.training.algorithms.tree import Node, Tree, without_untried
from qguide.training.data.records import drawn_of_steps, tree_from_row
from qguide.training.recordings.episode import RecordedEpisode
from qguide.training.recordings.fields import Fields, flaw_of, stated_task


def read_tree_record(record: Mapping[str, object], fields: Fields) -> Iterator[RecordedEpisode]:
    """The episodes of a tree, one per leaf; none if it is of an episode that is not asked for."""
    if fields.episodes and record.get("episode") not in fields.episodes:
        return
    if record.get("version") == 1:
        raise RecordError(
            "it is a tree of version 1; stop the server that writes to this file, and run `qguide "
            "convert-records PATH`, which keeps every tree"
        )
    try:
        row = TreeRow.model_validate(_of_the_row(record))
    except ValidationError as error:
        raise RecordError(flaw_of(error)) from error
    if not row.nodes:
        raise RecordError("it has no actions")
    if row.is_decided:
        raise RecordError(
            "it holds decision groups, whose candidates end before their episodes do; name whole "
            "episodes (`qguide collect`) or trees (`qguide explore`)"
        )
    tree = without_untried(tree_from_row(row))
    _require_observations(tree)
    task_id = stated_task(record, *(fields.tasks or ("task_id",))) or row.task_id
    for leaf in tree.leaves():
        yield RecordedEpisode(
            messages=_messages(tree, leaf),
            reward=leaf.step.reward,
            task_id=task_id,
            terminated=leaf.step.terminated,
            source=leaf.source,
            environment=row.environment,
            kind=row.kind,
            drawn=drawn_of_steps([node.step for node in tree.path(leaf.id)]),
        )


def _of_the_row(record: Mapping[str, object]) -> dict[str, object]:
    """A record without what it was told of its file."""
    return {name: value for name, value in record.items() if not name.startswith("@")}


def _require_observations(tree: Tree) -> None:
    """Refuse an inner node that observed no message: its reply and the next one would be one."""
    for node in tree.nodes:
        if node.step.observed == () and tree.children[node.id]:
            raise RecordError(
                f"node {node.id} observed no message, but other nodes follow it; give it an "
                "observation"
            )


def _messages(tree: Tree, leaf: Node) -> tuple[Message, ...]:
    history = tree.history(leaf.id)
    return history[:-1] if leaf.step.unobserved else history
