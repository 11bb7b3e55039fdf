"""Episodes as the chats that they are: the paths of trees.

    collect, import ─▶ TreeRow of one path ─▶ sft, pairs, explore, ipr, export-data, learn

A tree may have many paths, so what reads episodes reads trees, too: each path to a leaf is one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

from qguide.qnet.errors import RecordError
from qguide.qnet.records import EARNED, ROOT_ID, TaskRow, TreeRow
from qguide.qnet.types import INSTRUCTING, History
from qguide.training.algorithms.tree import Node, Tree, mistakes_of, tree_of, without_untried
from qguide.training.data.records import recorded_once, tree_from_row, tree_row
from qguide.training.data.runs import read_rows
from qguide.training.trajectory import Drawn, Step, observation_message, observation_text

UNNAMED: Final = "recorded"
"""The `source` of an episode whose recording does not name the agent."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode.

    Attributes:
        messages: the whole chat, up to the observation after the last action where it is known.
        reward: outcome at the end, whether the environment or a step limit ended it.
        task_id: equal for episodes of one task.
        terminated: False if a step limit cut it off; None if a recording does not say.
        mistakes: indices of the replies that are not to be imitated.
        source: "expert" or the policy's name; "" if it is not known.
        drawn: the policy's candidates before each reply; empty if they are not known.
        earned: the outcome if the episode had ended after each reply; empty if that is not known.
        left_out: what of a recording no Q model reads, and how often it was there.
        logprobs: log-probability of a reply, summed over its tokens, by its index; where it is known.
    """

    messages: History
    reward: float
    task_id: str
    terminated: bool | None = None
    mistakes: tuple[int, ...] = ()
    source: str = ""
    environment: str = ""
    kind: str = ""
    drawn: tuple[tuple[Drawn, ...], ...] = ()
    earned: tuple[float, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict, hash=False)
    logprobs: Mapping[int, float] = field(default_factory=dict, hash=False)
    episode: str = ""

    @property
    def replies(self) -> tuple[int, ...]:
        """Indices of the messages that are the agent's."""
        return tuple(i for i, said in enumerate(self.messages) if said.role == "assistant")

    @property
    def opening(self) -> History:
        """The messages before the first reply."""
        return self.messages[: self.replies[0]] if self.replies else self.messages

    @property
    def first_observation(self) -> str:
        """All that was said before the first reply, without the system message, as one text."""
        return observation_text(split_system(self.opening)[1])

    @property
    def steps(self) -> tuple[Step, ...]:
        """Actions with their observations; the last step has the outcome."""
        steps: list[Step] = []
        for start, end in pairwise((*self.replies, len(self.messages))):
            observed = self.messages[start + 1 : end]
            steps.append(Step.of_messages(self.messages[start], observed))
        if steps:
            # An episode that ends with a reply leaves open what it led to.
            seen = steps[-1].observed or None
            steps[-1] = replace(steps[-1], observed=seen, reward=self.reward, terminated=self.terminated)
        if not self.drawn:
            return tuple(steps)
        return tuple(replace(s, drawn=d) for s, d in zip(steps, self.drawn, strict=True))

    def to_row(self, *, environment: str = "", completion_tokens: int = 0) -> TreeRow:
        """The episode as a tree of one path."""
        system, opening = split_system(self.opening)
        text = observation_text(opening)
        plain = opening == (observation_message(text),)
        source = self.source or UNNAMED
        nodes = [
            Node(number, number - 1, number, step, source, mistake=number - 1 in self.mistakes)
            for number, step in enumerate(self.steps, start=1)
        ]
        tree = tree_of(
            text,
            nodes,
            opening=() if plain else opening,
            system=system,
            values={EARNED: dict(enumerate(self.earned, start=1))} if self.earned else {},
        )
        task = TaskRow(task_id=self.task_id, kind=self.kind, environment=self.environment or environment)
        return tree_row(tree, task, draws=1, completion_tokens=completion_tokens)


def split_system(opening: History) -> tuple[str | None, History]:
    """The leading system message, and the other messages."""
    if opening and opening[0].role in INSTRUCTING:
        return opening[0].content, opening[1:]
    return None, opening


def trajectories_of(row: TreeRow) -> Iterator[Trajectory]:
    """The episode of each path to a leaf; of a tree without actions, one that took none."""
    if row.is_decided:
        raise RecordError(
            f"the tree of {row.task_id} holds decision groups, whose candidates end before their "
            "episodes do; name whole episodes (`qguide collect`) or trees (`qguide explore`)"
        )
    tree = without_untried(tree_from_row(row))
    _require_observations(tree, row.task_id)
    for path in [tree.path(leaf.id) for leaf in tree.leaves()] or [()]:
        yield _trajectory(row, tree, path)


def _trajectory(row: TreeRow, tree: Tree, path: Sequence[Node]) -> Trajectory:
    steps = [node.step for node in path]
    history = tree.history(path[-1].id if path else ROOT_ID)
    return Trajectory(
        messages=history[:-1] if steps and steps[-1].unobserved else history,
        reward=steps[-1].reward if steps else 0.0,
        task_id=row.task_id,
        terminated=bool(steps) and steps[-1].terminated,
        mistakes=mistakes_of(path),
        source=path[-1].source if path else "",
        environment=row.environment,
        kind=row.kind,
        drawn=tuple(step.drawn for step in steps) if any(s.drawn for s in steps) else (),
        earned=_earned(path, tree.values.get(EARNED, {})),
        episode=row.episode,
    )


def _earned(path: Sequence[Node], told: Mapping[int, float]) -> tuple[float, ...]:
    """Outcome if the episode had ended after each action; empty where nothing tells any.

    After an action of which nothing is told, as much is earned as before it, and at the end the
    outcome.
    """
    if not any(node.id in told for node in path):
        return ()
    earned = [0.0]
    for node in path[:-1]:
        earned.append(told.get(node.id, earned[-1]))
    return (*earned[1:], told.get(path[-1].id, path[-1].step.reward))


def _require_observations(tree: Tree, task_id: str) -> None:
    """Refuse an inner node that observed no message: its reply and the next one would be one."""
    for node in tree.nodes:
        if node.step.observed == () and tree.children[node.id]:
            raise RecordError(
                f"node {node.id} of the tree of {task_id} observed no message, but other nodes "
                "follow it; give it an observation"
            )


def read_trajectories(*sources: Path) -> Iterator[Trajectory]:
    """The episodes of run folders or files of rows; see `read_rows`."""
    rows = chain.from_iterable(read_rows(source, TreeRow) for source in sources)
    return chain.from_iterable(map(trajectories_of, recorded_once(rows)))


def best_trajectories(folders: Sequence[Path]) -> dict[str, Trajectory]:
    """Each task's trajectory with the highest outcome; ties go to the first."""
    best: dict[str, Trajectory] = {}
    for found in read_trajectories(*folders):
        known = best.get(found.task_id)
        if known is None or found.reward > known.reward:
            best[found.task_id] = found
    return best
