"""Collect preference pairs of an agent's mistakes along expert trajectories (IPR 3.2 and 3.3).

    qguide ipr --config training/configs/alfworld/ipr.toml

reads an agent, a scorer and the expert's trajectories; plays the tasks that have one. The agent
plays to the end from every state of the trajectory. Where its action is worse than the expert's, by
the mean outcome of the scorer's roll-outs, and it ends worse, the expert's steps from there on are
preferred to its own. Where it ends worse from the start, so is the whole trajectory.

    explored.jsonl   one tree per task: the expert's trajectory, the agent's episode from the start
                     (`taken`) and from each state where it deviates, and step rewards (`process`)
    rows.jsonl       the pairs, all at once when the last task is done

The seed of a draw is derived from (seed, task, step), so neither `parallel` nor a resume changes a
row. The scorer stays the same over iterations, and so do the expert's step rewards: `earlier` names
the runs of the iterations before.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from pydantic import Field
from rich.console import Console

from qguide.qnet.chat_messages import message_key
from qguide.qnet.errors import ConfigError
from qguide.qnet.records import ROOT_ID, NodeRow, TreeRow, rows_of
from qguide.qnet.types import Scorer
from qguide.training.algorithms.tree import EXPERT, Node, Tree
from qguide.training.data.preferences import PreferenceRow, preference_row, scored_messages
from qguide.training.data.records import node_row, step_from_row, tree_from_row
from qguide.training.data.runs import EXPLORED, RunFolder, finished_task_ids, read_rows, rows_at_once
from qguide.training.data.trajectories import Trajectory, best_trajectories
from qguide.training.exploration.contrast import Contrast, Contrasted, RewardModel, contrast_task
from qguide.training.exploration.step_rewards import StepRewards
from qguide.training.rollouts.harness import PlayableTask, Rollouts
from qguide.training.rollouts.hosted import PREFIX, ROW_FIELDS, is_hosted
from qguide.training.rollouts.method import JobModels, Method, MethodConfig, PlayedTask, hashes_of, play_job
from qguide.training.rollouts.models import EMBEDDED
from qguide.training.rollouts.policies import JobPolicy
from qguide.training.rollouts.rollout import RolloutTask
from qguide.training.trajectory import Step

PROCESS: Final = "process"
"""The column of step rewards."""


class IprConfig(MethodConfig):
    """Configuration of `qguide ipr`.

    Attributes:
        policy: the agent: "embedded", a folder, "upstream:NAME" or an address with "#" and a model.
        scorer: the policy whose roll-outs give step rewards, named as `policy` is; the paper's is
            the SFT policy in every iteration. "" for `policy` itself.
        reward_model: "embedded" or the folder of a Q model that gives step rewards in place of the
            scorer's roll-outs (table 5). Its Q has to be a mean outcome: train it on groups of the
            scorer's roll-outs, with labels discounted by 1.
        expert: run folders of `collect`; each task's best trajectory is explored, and a task
            without any is not played.
        earlier: run folders of earlier iterations, whose step rewards of the expert are used again.
        contrast: how the agent explores, and how large its mistakes are.
        rewards: the roll-outs that give a step its reward, and the limits of every episode.
    """

    policy_fields = ("policy", "scorer")
    q_field = "reward_model"

    policy: str = EMBEDDED
    scorer: str = ""
    reward_model: str = ""
    expert: tuple[Path, ...] = Field(min_length=1)
    earlier: tuple[Path, ...] = ()
    contrast: Contrast = Contrast()
    rewards: StepRewards = StepRewards()

    def models(self) -> dict[str, str]:
        """See `MethodConfig`; iterations are compared by what scores, also where it is the agent."""
        return super().models() | {"scorer": self.scorer or self.policy}


def run_ipr(
    config: IprConfig,
    *,
    policy: JobPolicy | None = None,
    rollouts: JobPolicy | None = None,
    q_model: Scorer | None = None,
    console: Console | None = None,
) -> dict[str, float]:
    """Explore the tasks that have no row yet, then write the pairs of all tasks."""
    weights = hashes_of(config, JobModels(policy, rollouts, q_model))
    for folder in config.earlier:
        _require_same_scorer(folder, config, weights)
    return play_job(Ipr, config, policy=policy, rollouts=rollouts, q_model=q_model, console=console)


def _require_same_scorer(folder: Path, config: IprConfig, weights: Mapping[str, str]) -> None:
    if not (before := RunFolder(folder).read_config()):
        raise ConfigError(f"{folder} has no config.json; name run folders of `qguide ipr` in earlier")
    now = config.model_dump(mode="json")
    hashes = ("scorer_sha256", "reward_model_sha256")
    old = _identity_of_scorer(before) | {name: before.get(name) for name in hashes}
    new = _identity_of_scorer(now) | {name: weights[name] for name in hashes}
    for name in new | old:
        if old.get(name) != new.get(name):
            raise ConfigError(
                f"{name} was {old.get(name)!r} in {folder} and is {new.get(name)!r}; step rewards "
                "are comparable only by one scorer: use the same one, or leave the run out of "
                "earlier"
            )


def _identity_of_scorer(config: Mapping[str, Any]) -> dict[str, object]:
    """Fields that decide the scorer's rewards; a hosted scorer has no hash beside them."""
    name = config.get("scorer") or config.get("policy") or ""
    fields = {"rewards": config.get("rewards")}
    if not is_hosted(name):
        return fields
    table = config.get("upstreams", {}).get(name.removeprefix(PREFIX), {})
    return fields | {"scorer": name} | {f"scorer's {each}": table.get(each) for each in ROW_FIELDS}


class Ipr(Method[IprConfig]):
    """Explores each task along its expert's trajectory, then makes pairs of the mistakes."""

    job, unit, rate, file = "ipr", "trajectories", "rollouts", EXPLORED
    needs_branches = True

    def __init__(self, config: IprConfig, run: Rollouts, models: JobModels) -> None:
        super().__init__(config, run, models)
        q_model = models.q_model
        self._reward_model = RewardModel(q_model.reads_observation) if q_model else None
        self._experts = best_trajectories(config.expert)
        self._known = _expert_rewards(config.earlier)

    def finished(self) -> set[str]:
        """Ids of the tasks that are finished or have no trajectory of the expert."""
        tasks = {task.id for task in self.run.suite.tasks}
        without = tasks - self._experts.keys()
        if without == tasks:
            raise ConfigError(
                f"none of the {len(tasks)} tasks has a trajectory in expert = "
                f"{', '.join(map(str, self.config.expert))}; name the games of that run in "
                "[environment]"
            )
        return without | finished_task_ids(self.run.folder.path / EXPLORED)

    def play(self, playable: PlayableTask) -> RolloutTask[PlayedTask]:
        """Explore one task."""
        config, task_id = self.config, playable.task.id
        trajectory = self._experts[task_id]
        expert = trajectory.steps
        contrasted = yield from contrast_task(
            playable.game(config.seed),
            first_observation=trajectory.first_observation,
            expert=expert,
            mistakes=trajectory.mistakes,
            options=config.contrast,
            rewards=config.rewards,
            known=self._known.get((task_id, tuple(step.action for step in expert)), {}),
            reward_model=self._reward_model,
        )
        row = explored_row(trajectory, contrasted, source=self.source)
        figures = {
            "episodes": contrasted.episodes,
            "rollouts": contrasted.rollouts,
            "completion_tokens": contrasted.completion_tokens,
        }
        return PlayedTask([row], figures)

    def derive(self) -> dict[str, float]:
        """Write the pairs of all explored tasks; returns their figures, see `figures_of`."""
        rows = read_rows(self.run.folder.path / EXPLORED, TreeRow)
        explored = sorted(rows, key=lambda row: row.task_id)
        pairs = [pair for row in explored for pair in pairs_of(row, tau=self.config.contrast.tau)]
        with rows_at_once(self.run.folder.rows) as writer:
            writer.write(*pairs)
        return figures_of(explored, pairs)


def _expert_rewards(folders: Sequence[Path]) -> dict[tuple[str, tuple[str, ...]], dict[int, float]]:
    """Step rewards of the expert from earlier iterations, by task and by its actions."""
    found: dict[tuple[str, tuple[str, ...]], dict[int, float]] = {}
    for folder in folders:
        for row in read_rows(folder / EXPLORED, TreeRow):
            expert = _expert_nodes(row)
            rewards = enumerate(row.values[PROCESS][: len(expert)])
            known = found.setdefault((row.task_id, tuple(node.action for node in expert)), {})
            known.update({t: reward for t, reward in rewards if reward is not None})
    return found


def _expert_nodes(row: TreeRow) -> list[NodeRow]:
    return [node for node in row.nodes if node.source == EXPERT]


def explored_row(trajectory: Trajectory, contrasted: Contrasted, *, source: str) -> TreeRow:
    """An explored trajectory as a row.

    Args:
        trajectory: the expert's, whose step t is node t + 1.
    """
    row = trajectory.to_row()
    expert, own = trajectory.steps, contrasted.own
    both = zip(expert, own, strict=False)
    shared = sum(1 for _ in takewhile(lambda steps: steps[0] == steps[1], both))
    nodes = [node.model_copy(update={"taken": t < shared, "source": EXPERT}) for t, node in enumerate(row.nodes)]
    rest = _branch(len(nodes) + 1, shared, own[shared:], source=source)
    nodes += [node.model_copy(update={"taken": True}) for node in rest]
    rewards = {t + 1: reward for t, reward in contrasted.expert_rewards.items()}
    for deviation in contrasted.deviations:
        first = len(expert) + 1
        if (deviation.step, deviation.steps) != (shared, own[shared:]):
            first = len(nodes) + 1
            nodes += _branch(first, deviation.step, deviation.steps, source=source)
        if deviation.reward is not None:
            rewards[first] = deviation.reward
    found = {
        "nodes": tuple(nodes),
        "values": {PROCESS: tuple(rewards.get(node.id) for node in nodes)},
        "draws": contrasted.episodes,
        "completion_tokens": contrasted.completion_tokens,
    }
    return row.model_copy(update=found)


def _branch(first: int, at: int, steps: Sequence[Step], *, source: str) -> list[NodeRow]:
    """The nodes of some steps, from the id `first` on, after the expert's first `at` steps."""
    return [
        node_row(Node(first + i, first + i - 1 if i else at, at + i + 1, step, source)) for i, step in enumerate(steps)
    ]


def own_steps(row: TreeRow) -> list[Step]:
    """The agent's episode from the start; empty if there was no room for a first reply."""
    return [step_from_row(node) for node in row.nodes if node.taken]


def deviations_of(row: TreeRow) -> Iterator[tuple[NodeRow, NodeRow]]:
    """The expert's and the agent's action in each state where it took another than an example."""
    expert = _expert_nodes(row)
    begun = [node for node in row.nodes if node.source != EXPERT and node.parent < len(expert)]
    for node in sorted(begun, key=lambda node: node.depth):
        example = expert[node.parent]
        if not example.mistake and message_key(example.message) != message_key(node.message):
            yield example, node


def compared_of(row: TreeRow) -> Iterator[tuple[NodeRow, float, float]]:
    """The agent's deviations that end worse, with the step rewards of the expert and of it."""
    rewards = row.values[PROCESS]
    for example, own in deviations_of(row):
        expert_reward, own_reward = rewards[example.id - 1], rewards[own.id - 1]
        if expert_reward is not None and own_reward is not None:
            yield own, expert_reward, own_reward


def pairs_of(row: TreeRow, *, tau: float) -> Iterator[PreferenceRow]:
    """The whole trajectory if the agent ends worse, then the steps after each of its mistakes.

    A mistake in the first state makes no pair of its own: what follows it is the whole trajectory.
    """
    tree, own, nodes = tree_from_row(row), own_steps(row), _expert_nodes(row)
    expert, outcome = [step_from_row(node) for node in nodes], nodes[-1].reward
    errs = [t for t, node in enumerate(nodes) if node.mistake]
    if own and own[-1].reward < outcome and len(errs) < len(expert):
        yield preference_row(
            row,
            ("trajectory", "contrast"),
            state=rows_of(tree.history(ROOT_ID)),
            chosen=scored_messages(expert),
            rejected=scored_messages(own),
            values=(outcome, own[-1].reward),
            candidates=2,
            mistakes=errs,
        )
    for first, expert_reward, own_reward in compared_of(row):
        begin = first.parent
        if begin and expert_reward - own_reward > tau:
            yield preference_row(
                row,
                ("suffix", "contrast"),
                state=rows_of(tree.history(begin)),
                chosen=scored_messages(expert[begin:]),
                rejected=scored_messages(_to_the_end(tree, first.id)),
                values=(expert_reward, own_reward),
                candidates=2,
                mistakes=[number - begin for number in errs if number >= begin],
            )


def _to_the_end(tree: Tree, node_id: int) -> list[Step]:
    steps = [tree.node(node_id).step]
    while children := tree.children[node_id]:
        (node_id,) = children
        steps.append(tree.node(node_id).step)
    return steps


def figures_of(rows: Sequence[TreeRow], pairs: Sequence[PreferenceRow]) -> dict[str, float]:
    """Pairs and step rewards of explored trajectories.

    Returns:
        `own_outcome`: mean outcome of the agent from the start. `expert_reward` and `own_reward`:
        mean step reward of the two actions, over the states where they are compared.
    """
    levels = Counter(pair.level for pair in pairs)
    compared = [(expert, own) for row in rows for _, expert, own in compared_of(row)]
    means: Mapping[str, list[float]] = {
        "own_outcome": [own[-1].reward for own in map(own_steps, rows) if own],
        "expert_reward": [expert for expert, _ in compared],
        "own_reward": [own for _, own in compared],
        "mean_gap": [pair.gap for pair in pairs],
    }
    return {
        "tasks": len(rows),
        "steps": sum(len(_expert_nodes(row)) for row in rows),
        "deviations": sum(1 for row in rows for _ in deviations_of(row)),
        "compared": len(compared),
        "pairs": len(pairs),
        "suffix_pairs": levels["suffix"],
        "trajectory_pairs": levels["trajectory"],
        **{name: sum(values) / len(values) for name, values in means.items() if values},
    }
