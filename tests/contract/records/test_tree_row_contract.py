"""`qguide label` reads the same tree from the rows of every writer; add yours to WRITERS."""

from collections.abc import Callable
from functools import partial

import pytest

from qguide.qnet.records import TreeRow
from qguide.qnet.types import Message
from qguide.server.episodes.records import recorded_rows
from qguide.server.episodes.state import Offer, Outcome, Transcript
from qguide.training.algorithms.backups import label_tree
from qguide.training.algorithms.tree import Tree, merge_branch
from qguide.training.data.records import tree_from_row
from qguide.training.environment import Task
from qguide.training.environments.corridor import CORRIDOR, CorridorSuite
from qguide.training.exploration.tree_expansion import ExploredTree
from qguide.training.jobs.explore import explored_row
from qguide.training.rollouts.harness import PlayableTask
from qguide.training.trajectory import Step

TASK = "Find the mug."
STEPS = (
    Step("Thought: “look”.\nAction: look", "A müg.", 0.0),
    Step("Action: take mug", "You won!", 0.5, terminated=True),
)


def explored() -> TreeRow:
    tree, _ = merge_branch(Tree(TASK), STEPS, source="policy")
    suite = CorridorSuite(count=1)
    playable = PlayableTask(Task("mug-1", "find", "unused"), partial(suite.make, suite.tasks[0]), CORRIDOR)
    return explored_row(playable, "fake", ExploredTree(tree, 1, 0, 9))


def served() -> TreeRow:
    first, last = STEPS
    episode = Transcript(
        messages=(Message("user", TASK), Message("assistant", first.action), Message("user", first.observation)),
        offers=(
            Offer(at=1, q_values={first.action: 0.5}, chosen=first.action, q_model="q", policy="p"),
            Offer(at=3, q_values={last.action: 0.5}, chosen=last.action, q_model="q", policy="p"),
        ),
    )
    outcome = Outcome(reward=last.reward, observation=last.observation)
    tree, _ = recorded_rows(episode, outcome, str)
    assert tree is not None
    return tree


WRITERS: dict[str, Callable[[], TreeRow]] = {"explore": explored, "server": served}


@pytest.fixture(params=WRITERS)
def row(request: pytest.FixtureRequest) -> TreeRow:
    """The same two steps, by each writer."""
    return WRITERS[request.param]()


def test_a_row_comes_back_from_its_line(row: TreeRow) -> None:
    assert TreeRow.model_validate_json(row.model_dump_json()) == row


def test_every_writer_means_the_same_tree(row: TreeRow) -> None:
    tree = tree_from_row(TreeRow.model_validate_json(row.model_dump_json()))
    assert tree.first_observation == TASK
    assert tuple(node.step for node in tree.nodes) == STEPS
    assert tree.children == ((1,), (2,), ())


def test_every_writers_tree_has_the_same_labels(row: TreeRow) -> None:
    labels = label_tree(tree_from_row(row), target="q", gamma=0.9, normalized=False)
    assert labels == pytest.approx({1: 0.45, 2: 0.5})
