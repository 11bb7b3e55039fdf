"""Exploration trees by task, with several explorations of one task merged into one tree.

A task's trees with different openings, the messages before any action, stay apart, because they
hold no state in common. Each gets a task id of its own, which ends with a hash of its opening.
"""

import hashlib
import json
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Final

from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.records import JUDGED, ROOT_ID, TreeRow, messages_of
from qguide.training.algorithms.backups import TreeTarget, label_tree
from qguide.training.algorithms.tree import Tree, merge_branch, merge_trees, without_untried
from qguide.training.data.records import recorded_once, step_from_row, tree_from_row
from qguide.training.data.row_files import Place, RowStore, address_of, read_again, row_files
from qguide.training.trajectory import observation_message

_HASH_CHARACTERS: Final = 12
_NO_VALUES: Final = {
    "judge": "was read without a judge's scores, which `qguide label` takes from served episodes",
    "mcts": "does not have the values of a single search; explore it once with strategy = 'mcts'",
}
"""Reason why a tree has no values of a target, by target, and the remedy."""


def opening_hash_of_row(row: TreeRow) -> str:
    """Hash of all that a Q model reads before the first action."""
    opening = messages_of(row.opening) or (observation_message(row.first_observation),)
    text = json.dumps([row.system, [message.key for message in opening]])
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARACTERS]


def split_task_id(task_id: str, digest: str, *, among: Collection[str]) -> str:
    """Task id of the tree with one of a task's openings."""
    return f"{task_id}#{digest}" if len(among) > 1 else task_id


_TABLES: Final = """
    CREATE TABLE rows (task, opening, file, start, length);
    CREATE TABLE judged (task, opening, judge);
"""
_IN_ORDER: Final = """
    SELECT task, first, last, opening, file, start, length FROM (
        SELECT *, rowid AS number,
            MIN(opening) OVER of_task AS first, MAX(opening) OVER of_task AS last,
            MIN(rowid) OVER of_task AS task_number,
            MIN(rowid) OVER (PARTITION BY task, opening) AS tree_number
        FROM rows WINDOW of_task AS (PARTITION BY task)
    )
    WHERE :judge IS NULL
        OR (task, opening) IN (SELECT task, opening FROM judged WHERE judge = :judge)
    ORDER BY task_number, tree_number, number
"""


@dataclass(frozen=True, slots=True)
class TaskTree:
    """The tree of one task.

    Attributes:
        tree: with the values of the search that grew it, if it was not merged from several, or
            with a judge's scores as `judge` if they were asked for.
    """

    row: TreeRow
    tree: Tree

    def labels(
        self, *, target: TreeTarget, gamma: float, normalized: bool, noop_cost_steps: float = 1.0
    ) -> dict[int, float]:
        """The label of every node; of a search or a judge, of every node that it has valued."""
        if target == "judge" or target == "mcts":
            if target not in self.tree.values:
                raise ConfigError(f"task {self.row.task_id} {_NO_VALUES[target]}, or choose another target")
            return dict(self.tree.values[target])
        return label_tree(self.tree, target=target, gamma=gamma, normalized=normalized, noop_cost_steps=noop_cost_steps)


@dataclass(frozen=True, slots=True)
class StoredTree:
    """The rows of one tree as they are written, to be read here or on another machine.

    Attributes:
        lines: of each exploration, with the file that it stands in.
    """

    task_id: str
    lines: list[tuple[Path, bytes]]
    judge: str | None

    @property
    def nbytes(self) -> int:
        """Length of all lines."""
        return sum(len(line) for _, line in self.lines)

    def read(self) -> TaskTree:
        """The tree, merged from all explorations."""
        rows: list[TreeRow] = []
        before: dict[Path, list[TreeRow]] = {}
        for path, line in self.lines:
            row = read_again(line, TreeRow, path=path)
            _check_it_is_new(row, path, before.setdefault(path, []))
            rows.append(row)
        rows = list(recorded_once(rows))
        if self.judge is None:
            tree = merge_trees([without_untried(tree_from_row(row)) for row in rows])
        else:
            tree = judged_tree(rows, judge=self.judge)
        return TaskTree(rows[0].model_copy(update={"task_id": self.task_id}), tree)


class TaskTrees:
    """Every task with at least one action, and its merged tree, one in memory at a time.

    A task whose trees have different openings, for example with the date, gives one tree for each
    opening. Their task ids end with a hash of the opening, because labels with equal task ids count
    as one tree's.

    Args:
        judge: read the candidates that this judge scored into the trees, and leave out tasks
            without any; "" is the only judge, None reads no scores.
    """

    def __init__(
        self, folders: Sequence[Path], *, min_reward: float, max_reward: float, judge: str | None = None
    ) -> None:
        _refuse_the_same(folders)
        self._store = RowStore(TreeRow)
        self._rewards = min_reward, max_reward
        # Where the rows of each tree begin. SQLite keeps in a temporary file what is too much for
        # memory, and sorts there, so ten million rows may be read.
        self._index = sqlite3.connect("")
        self._index.executescript(_TABLES)
        for folder in folders:
            self._note_rows(folder)
        self._judge = None
        if not len(self):
            raise ConfigError(f"no tree with an action in {', '.join(map(str, folders))}; run `qguide explore` first")
        if judge is not None:
            found = {name for (name,) in self._index.execute("SELECT DISTINCT judge FROM judged")}
            self._judge = require_one_judge(found, judge)

    def _note_rows(self, folder: Path) -> None:
        for place, row in self._store.add(folder):
            _check_rewards(row, folder, *self._rewards)
            if row.is_decided:
                raise RecordError(
                    f"{folder}, task {row.task_id}: it holds decision groups, whose "
                    "candidates end before their episodes do; jobs that read them, such as "
                    "train-qnet and pairs, take it in `groups`"
                )
            if row.nodes:
                opening = opening_hash_of_row(row)
                tree = row.task_id.removesuffix(f"#{opening}"), opening
                self._index.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", (*tree, *place))
                judges = [name.removeprefix(JUDGED) for name in row.values if name.startswith(JUDGED)]
                self._index.executemany("INSERT INTO judged VALUES (?, ?, ?)", [(*tree, judge) for judge in judges])

    def __len__(self) -> int:
        """Number of trees."""
        count = "SELECT COUNT(*) FROM (SELECT DISTINCT task, opening FROM "
        if self._judge is None:
            ((trees,),) = self._index.execute(count + "rows)")
        else:
            ((trees,),) = self._index.execute(count + "judged WHERE judge = ?)", (self._judge,))
        return int(trees)

    def __iter__(self) -> Iterator[TaskTree]:
        """The trees, in the order of their first rows."""
        return (stored.read() for stored in self.stored())

    def stored(self) -> Iterator[StoredTree]:
        """The same, not read yet."""
        ordered = self._index.execute(_IN_ORDER, {"judge": self._judge})
        for (task, first, last, opening), places in groupby(ordered, key=itemgetter(0, 1, 2, 3)):
            task_id = split_task_id(task, opening, among={first, last})
            found = [Place(*place) for _, _, _, _, *place in places]
            lines = [(self._store.path(place), self._store.line(place)) for place in found]
            yield StoredTree(task_id, lines, self._judge)


def _refuse_the_same(folders: Sequence[Path]) -> None:
    found: dict[Path, Path] = {}
    for folder in folders:
        for path in row_files(folder):
            place = path if address_of(path) else path.resolve()
            if place in found:
                raise ConfigError(f"trees names {found[place]} and {folder}, the same rows; remove one")
            found[place] = folder


def _check_it_is_new(row: TreeRow, file: Path, before: list[TreeRow]) -> None:
    """Refuse an exploration that a file holds twice; one draw, as of served episodes, may recur."""
    if row.draws > 1:
        if row in before:
            raise RecordError(
                f"{file}, task {row.task_id}: the same exploration stands there twice; remove one of its rows"
            )
        before.append(row)


def _check_rewards(row: TreeRow, folder: Path, min_reward: float, max_reward: float) -> None:
    for node in row.nodes:
        if not min_reward <= node.reward <= max_reward:
            raise RecordError(
                f"{folder}, task {row.task_id}, node {node.id}: its reward is {node.reward:g}, but "
                f"rewards are {min_reward:g} to {max_reward:g} here; scale them, or set min_reward "
                "and max_reward"
            )


def require_one_judge(found: Collection[str], judge: str) -> str:
    """The judge whose scores are labels; scores of different judges or prompts are never mixed."""
    judges = sorted(found)
    if not judges:
        raise ConfigError(
            "no tree has a judge's scores; serve with a judge as the Q model and with "
            "QGUIDE_EPISODES_DIR, and report the episodes' outcomes"
        )
    if judge and judge not in judges:
        raise ConfigError(f"judge is {judge!r}, but the trees have scores of {', '.join(judges)}")
    if not judge and len(judges) > 1:
        raise ConfigError(f"the trees have scores of several judges ({', '.join(judges)}); choose one with judge")
    return judge or judges[0]


def judged_tree(rows: Sequence[TreeRow], *, judge: str) -> Tree:
    """One task's episodes and judged candidates as a tree, with the mean score of each as `judge`.

    Candidates that differ only in their thoughts are one node.
    """
    tree = replace(tree_from_row(rows[0]), nodes=(), children=((),))
    scores: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        ids = {ROOT_ID: ROOT_ID}
        column = row.values.get(JUDGED + judge) or [None] * len(row.nodes)
        for node, score in zip(row.nodes, column, strict=True):
            if node.tried or score is not None:
                step, at = step_from_row(node), ids[node.parent]
                tree, (ids[node.id],) = merge_branch(tree, [step], at=at, source=node.source)
            if score is not None:
                scores[ids[node.id]].append(score)
    means = {node_id: fmean(own) for node_id, own in scores.items()}
    return replace(tree, values={"judge": means})
