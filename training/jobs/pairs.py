"""Make preference pairs from decision groups, exploration trees and episodes.

    qguide pairs --config training/configs/alfworld/pairs.toml

reads the rows of other jobs and writes preference rows for `train-dpo`:

    source     pairs                                                              paper
    groups     every two candidates of one state                                  none
    explore    each action of the best path and its sibling of lowest Q           StepQ
               a tree's branches with different outcomes (trajectory_pairs)       StepQ's ablation
    collect    episodes of one task with different outcomes (against_expert)      ETO

ETO (Song et al., 2024) clones the expert, then repeats: let the policy play the expert's tasks, pair
the two episodes of each task by outcome, and fit the policy by DPO over whole episodes e, whose log pi
is the sum over the replies' tokens (`policy_training/dpo_loss.py`):

    loss = -log sigmoid(beta * log pi(e_win) / pi_ref(e_win) - beta * log pi(e_lose) / pi_ref(e_lose))

Whichever of the two ended better is chosen here, and a task gives `most_per_task` pairs, those of
the largest differences. A round is a run of `collect`, `pairs` and `train-dpo`.

It takes seconds, so a killed run starts over; its rows appear all at once when it is done.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from qguide.qnet.chat_messages import effects_of
from qguide.qnet.errors import ConfigError
from qguide.qnet.records import MAX_REWARD, ROOT_ID, MessageRow, TreeRow, rows_of
from qguide.qnet.types import History
from qguide.training.algorithms.backups import TreeTarget, labels_of_actions
from qguide.training.algorithms.preferences import best_path_pairs, value_pairs
from qguide.training.algorithms.tree import EXPERT, Node
from qguide.training.data.decision_groups import GroupLabels, decisions_of
from qguide.training.data.preferences import PreferenceRow, preference_row, scored_messages
from qguide.training.data.records import recorded_once
from qguide.training.data.row_files import RowGroups, lines_of, row_files, row_of
from qguide.training.data.runs import JsonlWriter, RunFolder, open_run, rows_at_once
from qguide.training.data.task_trees import StoredTree, TaskTree, TaskTrees
from qguide.training.data.trajectories import trajectories_of
from qguide.training.options import JobOptions
from qguide.training.workers.config import RowWorkers, Workers
from qguide.training.workers.ray_actors import spread

MAY_CHANGE = frozenset({"output", "workers"})
_LEAST_MARGIN = 1e-9


class StoredGroups(NamedTuple):
    """A row of decision groups as it is written, to be read here or on another machine."""

    path: Path
    number: int
    line: bytes

    @property
    def nbytes(self) -> int:
        """Length of the line."""
        return len(self.line)


class PairsConfig(JobOptions):
    """Configuration of `qguide pairs`.

    Attributes:
        groups: run folders of `groups`.
        trees: run folders of `explore`.
        trajectories: run folders of `collect`; episodes of one task are compared by their outcome.
        output: the run folder to write.
        group_labels: how values are computed from roll-outs; for `groups` only.
        target: values of a tree's nodes; StepQ uses those of its search, "mcts".
        gamma: discount per step; for the target `q` only.
        normalize: scale each tree's values to [0, 1]; for the target `q` only.
        step_pairs: make pairs of actions, from `groups` and `trees`.
        trajectory_pairs: make pairs of a tree's branches by their outcome, as in StepQ's ablation.
        against_expert: compare an episode of `trajectories` only if one side is the expert's and
            the other is not, as in ETO. False also compares a policy's episodes with each other.
        min_label_margin: actions whose values differ by less do not form a pair.
        most_per_task: maximum number of pairs of a task's episodes or branches; those with the
            largest differences are kept. 0 for no limit.
        min_reward, max_reward: bounds of every action's reward; a tree beyond them is refused.
        workers: where the pairs of `groups` and `trees` are made: with the executor "ray", `count` tasks of Ray
            work at a time, and the rows are the same.
    """

    groups: tuple[Path, ...] = ()
    trees: tuple[Path, ...] = ()
    trajectories: tuple[Path, ...] = ()
    output: Path
    group_labels: GroupLabels = GroupLabels()
    target: TreeTarget = "q"
    gamma: float = Field(default=0.9, ge=0, le=1)
    normalize: bool = True
    step_pairs: bool = True
    trajectory_pairs: bool = False
    against_expert: bool = False
    min_label_margin: float = Field(default=0.005, gt=0)
    most_per_task: int = Field(default=1, ge=0)
    min_reward: float = Field(default=-100.0, ge=-MAX_REWARD, le=0)
    max_reward: float = Field(default=100.0, ge=0, le=MAX_REWARD)
    workers: RowWorkers = Workers()

    @model_validator(mode="after")
    def _something_to_read(self) -> Self:
        if not self.groups and not self.trees and not self.trajectories:
            raise ValueError("groups, trees and trajectories are all empty; name a run folder")
        return self


def run_pairs(config: PairsConfig) -> dict[str, object]:
    """Write the preference rows; returns the statistics that `metrics.jsonl` gets too."""
    with open_run(config.output, config, may_change=MAY_CHANGE) as run:
        return _write(config, run)


def _write(config: PairsConfig, run: RunFolder) -> dict[str, object]:
    tasks, sources, gaps = set[str](), Counter[str](), 0.0
    with rows_at_once(run.rows) as writer:
        spread_out = chain.from_iterable(spread(partial(_pairs, config), _sources(config), config.workers))
        for line, task_id, source, gap in chain(spread_out, map(_written, _of_trajectories(config))):
            tasks.add(task_id)
            sources[source] += 1
            gaps += gap
            writer.write_lines(line)
        if not tasks:
            raise ConfigError(
                "no two actions or episodes differ enough in value; lower min_label_margin "
                f"({config.min_label_margin:g}), or explore and collect with a policy that also "
                "fails"
            )
    pairs = sources.total()
    counts = {f"{name}_pairs": count for name, count in sorted(sources.items())}
    summary: dict[str, object] = {"tasks": len(tasks), "pairs": pairs, **counts, "mean_gap": gaps / pairs}
    with JsonlWriter(run.metrics) as metrics:
        metrics.write(summary)
    return summary


def _sources(config: PairsConfig) -> Iterator[StoredTree | StoredGroups]:
    for folder in config.groups:
        for path in row_files(folder):
            yield from (StoredGroups(path, *line) for line in lines_of(path, TreeRow))
    if config.trees:
        yield from TaskTrees(config.trees, min_reward=config.min_reward, max_reward=config.max_reward).stored()


_Written = tuple[bytes, str, str, float]
"""The line of a pair, and what statistics count of it: task, source and gap."""


def _pairs(config: PairsConfig, source: StoredTree | StoredGroups) -> list[_Written]:
    if isinstance(source, StoredTree):
        return list(map(_written, _of_tree(source.read(), config)))
    row = row_of(source.line, TreeRow, path=source.path, number=source.number)
    return list(map(_written, _of_groups(row, config)))


def _written(row: PreferenceRow) -> _Written:
    return f"{row.model_dump_json()}\n".encode(), row.task_id, row.source, row.gap


def _of_groups(row: TreeRow, config: PairsConfig) -> Iterator[PreferenceRow]:
    decisions = decisions_of(row)  # refuses another tree
    state: tuple[MessageRow, ...] = ()
    for decision in decisions if config.step_pairs else ():
        state += rows_of(decision.history[len(state) :])
        candidates = decision.candidates
        values = [label.value for label in decision.labels(config.group_labels)]
        pairs = value_pairs(
            values,
            min_margin=config.min_label_margin,
            sides=effects_of([candidate.message for candidate in candidates]),
        )
        for better, worse in pairs:
            yield preference_row(
                row,
                ("step", "group"),
                state=state,
                chosen=(candidates[better].message,),
                rejected=(candidates[worse].message,),
                values=(values[better], values[worse]),
                candidates=len(candidates),
            )


def _of_tree(task: TaskTree, config: PairsConfig) -> Iterator[PreferenceRow]:
    if config.step_pairs:
        yield from _along_best_path(task, config)
    if not config.trajectory_pairs:
        return
    tree = task.tree
    leaves = list(tree.leaves())
    rewards = [leaf.step.reward for leaf in leaves]
    for better, worse in value_pairs(rewards, min_margin=_LEAST_MARGIN, most=config.most_per_task):
        yield preference_row(
            task.row,
            ("trajectory", "outcome"),
            state=rows_of(tree.history(ROOT_ID)),
            chosen=_replies(tree.path(leaves[better].id)),
            rejected=_replies(tree.path(leaves[worse].id)),
            values=(rewards[better], rewards[worse]),
            candidates=len(leaves),
        )


def _along_best_path(task: TaskTree, config: PairsConfig) -> Iterator[PreferenceRow]:
    tree = task.tree
    labels = task.labels(target=config.target, gamma=config.gamma, normalized=config.normalize)
    values = labels_of_actions(tree, labels)
    for better, worse in best_path_pairs(tree, values, min_margin=config.min_label_margin):
        parent = tree.node(better).parent
        yield preference_row(
            task.row,
            ("step", "best-path"),
            state=rows_of(tree.history(parent)),
            chosen=_replies([tree.node(better)]),
            rejected=_replies([tree.node(worse)]),
            values=(values[better], values[worse]),
            candidates=len(tree.children[parent]),
        )


def _of_trajectories(config: PairsConfig) -> Iterator[PreferenceRow]:
    rows = RowGroups(TreeRow)
    for folder in config.trajectories:
        rows.add(folder, lambda row: row.task_id if row.nodes else None)
    for group in rows:
        episodes = [(row, each) for row in recorded_once(group) for each in trajectories_of(row)]
        outcomes = [each.reward for _, each in episodes]
        sides = [e.source == EXPERT for _, e in episodes] if config.against_expert else None
        for better, worse in value_pairs(outcomes, min_margin=_LEAST_MARGIN, most=config.most_per_task, sides=sides):
            row, chosen = episodes[better]
            if len(chosen.mistakes) == len(chosen.replies):  # nothing to prefer
                continue
            yield preference_row(
                row,
                ("trajectory", "outcome"),
                state=rows_of(chosen.opening),
                chosen=scored_messages(chosen.steps),
                rejected=scored_messages(episodes[worse][1].steps),
                values=(outcomes[better], outcomes[worse]),
                candidates=len(episodes),
                mistakes=chosen.mistakes,
            )


def _replies(nodes: Sequence[Node]) -> History:
    return scored_messages([node.step for node in nodes])
