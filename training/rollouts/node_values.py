"""Values that a Q model gives the actions of an exploration tree, for targets that bootstrap."""

from collections.abc import Iterator

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import ROOT_ID, TreeRow
from qguide.qnet.types import Message, Scorer, ScoreRequest, ranks, reads_observation
from qguide.training.algorithms.tree import Tree
from qguide.training.rollouts.valuing import value_request

_STATES_AT_ONCE = 32


def node_values(scorer: Scorer, task: TreeRow, tree: Tree) -> dict[int, float]:
    """Q of every node of a tree, by its id.

    Args:
        task: the tree's row, with the system message of its states.
    """
    if ranks(scorer):
        raise ConfigError(
            f"{scorer.name} ranks the candidates of one state, and ranks are no values; name "
            "another Q model as qnet"
        )
    observes = reads_observation(scorer)
    if observes:
        _require_observations(scorer.name, task, tree)
    values: dict[int, float] = {}
    asked = list(_states(task, tree, observes=observes))
    for first in range(0, len(asked), _STATES_AT_ONCE):
        some = asked[first : first + _STATES_AT_ONCE]
        results = scorer.score([request for _, request in some])
        for (children, _), result in zip(some, results, strict=True):
            values |= dict(zip(children, result.q_values, strict=True))
    return values


def _states(
    task: TreeRow, tree: Tree, *, observes: bool
) -> Iterator[tuple[tuple[int, ...], ScoreRequest]]:
    """The children of every state that has some, and the request for their values."""
    before = () if task.system is None else (Message("system", task.system),)
    for node_id in (ROOT_ID, *(node.id for node in tree.nodes)):
        if children := tree.children[node_id]:
            history = (*before, *tree.history(node_id))
            steps = [tree.node(child).step for child in children]
            yield children, value_request(history, steps, observes=observes)


def _require_observations(scorer: str, task: TreeRow, tree: Tree) -> None:
    for node in tree.nodes:
        if node.step.unobserved:
            raise ConfigError(
                f"task {task.task_id}, node {node.id}: what the action was answered was not "
                f"recorded, and {scorer} reads it; name a Q model that is read at the action"
            )
