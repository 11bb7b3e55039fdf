"""Rows of decision groups, from what the candidates of each state are."""

from collections.abc import Mapping, Sequence
from typing import Any

from qguide.qnet.records import NodeRow, TreeRow
from qguide.training.data.decision_groups import GroupDecision, decided_nodes


def candidate(action: str, *ends: tuple[float, int], **changes: Any) -> NodeRow:
    """A candidate with its roll-outs, (outcome reward, steps) each; a single step by default."""
    rollouts = [{"outcome_reward": reward, "steps": steps, "terminated": True} for reward, steps in ends or [(1.0, 1)]]
    fields = {"id": 1, "parent": 0, "depth": 1, "source": "policy", "observation": ""}
    return NodeRow.model_validate(fields | {"action": action, "rollouts": rollouts} | changes)


def groups_row(*decisions: GroupDecision | tuple[Sequence[NodeRow], int], **changes: Any) -> TreeRow:
    """An episode of these decisions: each is one, or its candidates and the index of the taken."""
    made = [one if isinstance(one, GroupDecision) else GroupDecision(tuple(one[0]), one[1]) for one in decisions]
    fields: Mapping[str, Any] = {
        "task_id": "t",
        "kind": "k",
        "environment": "e",
        "first_observation": "go",
        "nodes": decided_nodes(made),
        "draws": 1,
    }
    return TreeRow.model_validate(dict(fields) | changes)
