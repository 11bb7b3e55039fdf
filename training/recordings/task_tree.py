"""The tree of the episodes of one task, and figures on what can be learned from it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean

from qguide.qnet.records import TreeRow
from qguide.qnet.types import History
from qguide.training.algorithms.bellman import bellman_backup
from qguide.training.algorithms.tree import Tree, merge_branch
from qguide.training.data.records import (
    TrajectoryRow,
    drawn_from_rows,
    messages_of,
    tree_row,
)
from qguide.training.data.task_trees import opening_hash, split_task_id
from qguide.training.trajectory import Step, observation_message, observation_text

_LEAST_DIFFERENCE = 1e-9


@dataclass(frozen=True, slots=True)
class TreeFigures:
    """Figures of one tree, or sums over several; see `recordings.report.ImportReport`."""

    episodes: int = 0
    states: int = 0
    branching_states: int = 0
    differing_groups: int = 0
    repeated_episodes: int = 0
    contained_episodes: int = 0
    disagreeing_episodes: int = 0
    uncertain_states: int = 0


@dataclass(frozen=True, slots=True)
class TaskTree:
    """The tree of one task as a record, and its figures."""

    row: TreeRow
    figures: TreeFigures


@dataclass(frozen=True, slots=True)
class _Chat:
    """An episode as the messages before its first action, and its steps."""

    opening: History
    steps: tuple[Step, ...]
    row: TrajectoryRow

    @property
    def path(self) -> tuple[tuple[str, str, bool], ...]:
        """Actions and observations; episodes are equal if these are."""
        return tuple((step.key, step.observation, step.unobserved) for step in self.steps)


def build_task_trees(rows: Sequence[TrajectoryRow]) -> list[TaskTree]:
    """Merge the episodes of one task; equal beginnings become the same nodes.

    Episodes that open with other messages are in other states, so each opening becomes a tree of
    its own, whose task id ends with a hash of the opening.
    """
    by_opening: dict[str, list[_Chat]] = defaultdict(list)
    for chat in map(_chat, rows):
        by_opening[opening_hash(*_split_system(chat.opening))].append(chat)
    return [
        _build_tree(chats, task_id=split_task_id(chats[0].row.task_id, digest, among=by_opening))
        for digest, chats in by_opening.items()
    ]


def _build_tree(chats: Sequence[_Chat], *, task_id: str) -> TaskTree:
    """The tree of episodes with the same opening.

    The longest come first, so that no inner node has an outcome: an episode that another one
    continues was cut short, and the tree keeps the outcome of the longer one. For the same reason
    an episode without its last observation comes after those that have it. Rewards of equal
    episodes are averaged.
    """
    groups: dict[tuple[object, ...], list[_Chat]] = defaultdict(list)
    for chat in chats:
        groups[chat.path].append(chat)
    tree, contained, disagreeing = _root(chats[0]), 0, 0
    for equal in sorted(groups.values(), key=_most_recorded_first):
        rewards = [chat.row.outcome_reward for chat in equal]
        disagreeing += max(rewards) - min(rewards) > _LEAST_DIFFERENCE
        known = len(tree.nodes)
        steps = _rewarded(equal[0], fmean(rewards))
        tree, branch = merge_branch(tree, steps, source=equal[0].row.source)
        contained += len(equal) if branch[-1] <= known else 0
    branching, differing, uncertain = _count_branching(tree)
    figures = TreeFigures(
        episodes=len(chats),
        states=sum(bool(children) for children in tree.children),
        branching_states=branching,
        differing_groups=differing,
        repeated_episodes=len(chats) - len(groups),
        contained_episodes=contained,
        disagreeing_episodes=disagreeing,
        uncertain_states=uncertain,
    )
    row = tree_row(
        tree,
        chats[0].row.model_copy(update={"task_id": task_id}),
        draws=len(chats),
        completion_tokens=sum(chat.row.completion_tokens for chat in chats),
    )
    return TaskTree(row, figures)


def _most_recorded_first(equal: Sequence[_Chat]) -> tuple[int, bool]:
    steps = equal[0].steps
    return -len(steps), steps[-1].unobserved


def _chat(row: TrajectoryRow) -> _Chat:
    messages = messages_of(row.messages)
    turns = [list(turn) for _, turn in groupby(messages, key=lambda m: m.role == "assistant")]
    opening, *rest = turns
    steps: list[Step] = []
    for number in range(0, len(rest), 2):
        (reply,), observed = rest[number], tuple(*rest[number + 1 : number + 2])
        # An episode that ends with a reply leaves open what it led to.
        last = number + 2 >= len(rest)
        drawn = drawn_from_rows(row.drawn[len(steps)]) if row.drawn else ()
        step = replace(Step.of_messages(reply, observed), drawn=drawn)
        steps.append(replace(step, observed=None) if last and not observed else step)
    return _Chat(tuple(opening), tuple(steps), row)


def _root(chat: _Chat) -> Tree:
    system, opening = _split_system(chat.opening)
    text = observation_text(opening)
    plain = opening == (observation_message(text),)
    return Tree(text, opening=() if plain else opening, system=system)


def _split_system(opening: History) -> tuple[str | None, History]:
    """The leading system message, and the other messages."""
    if opening[0].role in ("system", "developer"):
        return opening[0].content, opening[1:]
    return None, opening


def _rewarded(chat: _Chat, reward: float) -> list[Step]:
    *before, last = chat.steps
    return [*before, replace(last, reward=reward, terminated=chat.row.terminated)]


def _count_branching(tree: Tree) -> tuple[int, int, int]:
    """Numbers of states: branching, branching with different outcomes, and uncertain."""
    best = bellman_backup(tree, gamma=1.0)
    branching = differing = uncertain = 0
    for children in tree.children:
        outcomes = _outcomes(tree, children, best)
        branching += len(outcomes) > 1
        uncertain += len(outcomes) < len(children)
        differing += (
            len(outcomes) > 1
            and max(outcomes.values()) - min(outcomes.values()) > _LEAST_DIFFERENCE
        )
    return branching, differing, uncertain


def _outcomes(tree: Tree, children: Sequence[int], best: Mapping[int, float]) -> dict[str, float]:
    """Best outcome of each different action of a state."""
    outcomes: dict[str, float] = {}
    for child in children:
        key = tree.node(child).step.key
        outcomes[key] = max(best[child], outcomes.get(key, best[child]))
    return outcomes
