"""Grow an exploration tree per task with a policy, by expansion (QLASS algorithm 2) or by search.

    qguide explore --config training/configs/alfworld/explore.toml

reads a policy checkpoint and, if named, the expert's trajectories; writes tree rows. Many trees
grow in parallel, so that the policy samples in batches. The seed of a draw is derived from (seed,
task, draw), so neither `parallel` nor a resume changes a tree.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from qguide.qnet.decision.selection import SelectionName
from qguide.qnet.errors import ConfigError
from qguide.qnet.records import TaskRow, TreeRow
from qguide.training.algorithms.backups import sibling_groups
from qguide.training.algorithms.tree import branching_fraction
from qguide.training.data.records import tree_row
from qguide.training.data.trajectories import best_trajectories
from qguide.training.exploration.mcts import Mcts, SearchedTree, search_task
from qguide.training.exploration.tree_expansion import Exploration, ExploredTree, explore_task
from qguide.training.rollouts.harness import PlayableTask, Rollouts
from qguide.training.rollouts.method import JobModels, Method, MethodConfig, PlayedTask, play_job
from qguide.training.rollouts.models import EMBEDDED, check_selection, prior_in_use
from qguide.training.rollouts.policies import guide_actions
from qguide.training.rollouts.rollout import RolloutTask


class ExploreConfig(MethodConfig):
    """Configuration of `qguide explore`.

    Attributes:
        policy: "embedded", the folder of a policy, "upstream:NAME" or an address with "#" and a
            model; or without a model "random", "scripted", or "expert", which branches off by
            mistakes and recovers from them.
        guide: "embedded" or the folder of a Q model (QNet or implicit Q) that chooses the policy's
            steps among `exploration.candidates`, for a second, on-policy round; "" for none.
        selection: of the guide: "argmax" of Q, or "posterior", Q / tau + log prior; None plays as a server
            would: the posterior that was fitted with the guide, or the argmax for one without.
        tau: temperature of Q in the posterior; None is the fitted one, or 0.05.
        rollouts: policy that plays on after a branch, named as `policy` is; "" for `policy` itself.
        expert: run folders of `collect`; a task's best trajectory is merged into its tree.
        strategy: "expand" is QLASS's; "mcts" is StepQ's Monte Carlo tree search, whose rows also
            have the columns `visits` and `mcts`.
        exploration: how a tree grows by expansion.
        mcts: how a task is searched.
    """

    policy_fields = ("policy", "rollouts")
    q_field = "guide"

    policy: str = EMBEDDED
    guide: str = ""
    selection: SelectionName | None = None
    tau: float | None = Field(default=None, ge=0)
    rollouts: str = ""
    expert: tuple[Path, ...] = ()
    strategy: Literal["expand", "mcts"] = "expand"
    exploration: Exploration = Exploration()
    mcts: Mcts = Mcts()

    @model_validator(mode="after")
    def _explore_fields_agree(self) -> Self:
        if self.rollouts and not self.exploration.greedy_rollout:
            raise ValueError(
                f"rollouts is {self.rollouts!r} and exploration.greedy_rollout false; a policy for "
                "rollouts plays greedily, so set greedy_rollout to true"
            )
        if self.strategy == "mcts" and (self.guide or self.rollouts or self.expert):
            raise ValueError("strategy is 'mcts', but guide, rollouts or expert is set; a search takes none of them")
        if self.guide and self.exploration.candidates < 2:
            raise ValueError(
                f"guide is {self.guide!r} and exploration.candidates 1; a guide needs a choice, so "
                "set candidates to 2 or more"
            )
        check_selection(self.selection, self.tau, q_field="guide", q_name=self.guide)
        return self


def whole_episodes(config: ExploreConfig) -> ExploreConfig:
    """The same exploration without branches: every trajectory starts at the root."""
    if config.strategy == "mcts" or config.expert:
        raise ConfigError(
            "strategy is 'mcts' or expert is set, which need branches, and the environment allows "
            "whole episodes only; use strategy = 'expand' without expert"
        )
    return config.model_copy(update={"exploration": config.exploration.model_copy(update={"depth": 0})})


def explored_row(playable: PlayableTask, environment: str, explored: ExploredTree | SearchedTree) -> TreeRow:
    """A finished tree as a row, with its search statistics if it was searched."""
    tree = replace(explored.tree, system=playable.environment.chat.system)
    if isinstance(explored, SearchedTree):
        found = explored.statistics
        tree = replace(tree, values={"visits": found.visit_counts, "mcts": found.values})
    task = TaskRow(task_id=playable.task.id, kind=playable.task.kind, environment=environment)
    return tree_row(
        tree, task, draws=explored.draws, misses=explored.misses, completion_tokens=explored.completion_tokens
    )


class Explore(Method[ExploreConfig]):
    """Grows each task's tree."""

    job, unit, rate = "explore", "trees", "draws"
    means = frozenset({"branching_fraction", "expanded_branching_fraction", "mean_leaf_reward"})

    def __init__(self, config: ExploreConfig, run: Rollouts, models: JobModels) -> None:
        branches = run.branch() != "none"
        super().__init__(config if branches else whole_episodes(config), run, models)
        self._expert = best_trajectories(config.expert)
        self._prior = prior_in_use(config.guide, config.selection, config.tau) if config.guide else None

    def play(self, playable: PlayableTask) -> RolloutTask[PlayedTask]:
        """Grow the tree of one task."""
        config = self.config
        growing = self._grow(playable)
        if config.guide:
            growing = guide_actions(growing, num_candidates=config.exploration.candidates, prior=self._prior)
        explored = yield from growing
        searches = config.strategy == "mcts"
        depth = config.mcts.max_steps if searches else config.exploration.depth
        figures = tree_figures(explored, depth=depth)
        self.run.metrics.write({"task_id": playable.task.id, **figures})
        return PlayedTask([explored_row(playable, config.environment.name, explored)], figures)

    def note(self, summary: Mapping[str, float]) -> str:
        """See `Method`."""
        return (
            f"branching {summary['expanded_branching_fraction']:.2f}  "
            f"reward {summary['mean_leaf_reward']:.2f}  {super().note(summary)}"
        )

    def _grow(self, playable: PlayableTask) -> RolloutTask[ExploredTree | SearchedTree]:
        config, game, source, budget = self.config, playable.game(self.config.seed), self.source, self.run.budget
        if config.strategy == "mcts":
            return (yield from search_task(game, config.mcts, source=source))
        if (expert := self._expert.get(playable.task.id)) is None:
            return (yield from explore_task(game, config.exploration, source=source, budget=budget))
        grow = partial(explore_task, expert=expert.steps, mistakes=expert.mistakes)
        return (yield from grow(game, config.exploration, source=source, budget=budget))


run_explore = partial(play_job, Explore)


def tree_figures(explored: ExploredTree | SearchedTree, *, depth: int) -> dict[str, float]:
    """Figures of one tree in `metrics.jsonl`."""
    tree = explored.tree
    rewards = [leaf.step.reward for leaf in tree.leaves()]
    return {
        "nodes": len(tree.nodes),
        "leaves": len(rewards),
        "sibling_groups": sum(1 for _ in sibling_groups(tree)),
        "branching_fraction": branching_fraction(tree),
        "expanded_branching_fraction": branching_fraction(tree, depth=depth),
        "mean_leaf_reward": sum(rewards) / len(rewards) if rewards else 0.0,
        "draws": explored.draws,
        "misses": explored.misses,
        "completion_tokens": explored.completion_tokens,
    }
