"""Monte Carlo tree search of one task, with a policy that draws and rolls out (StepQ algorithm 1).

StepQ (Zhai et al., 2024) repeats, m times or until a reward of 1: walk to a leaf by UCT, add n draws
to it, play each to the end, and back the outcomes up. Each action of the best path and its sibling
of lowest Q are a pair, which teaches a model pi; the draw of highest Q is taken (equation 10):

    UCT(s) = V(s) + sqrt(eta * ln N(parent) / N(s))                     (equation 4)
    V(s) <- (V(s) * (N(s) - 1) + r) / N(s)                              (equation 5)
    Q(s_t, a_t) = V(s_{t+1})                                            (equation 6)
    loss = -log sigmoid(Q(s, a_win) - Q(s, a_lose))                     (equation 8)
    Q(s, a) = beta * (log pi(a | s) - log pi_ref(a | s))                (equation 9)

The pairs are in `algorithms/preferences.py`, the loss in `policy_training/dpo_loss.py`.

Two things differ from the published algorithm (ours). The steps of a roll-out are added to the
tree, because otherwise a tree of few iterations has no winning path. An action that a child of the
node already has is not added again, and it is not evaluated again. A third is an option: with
`evaluate = "one"` a single child of an expanded node is rolled out.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf, log, sqrt
from types import MappingProxyType
from typing import Literal

from pydantic import Field

from qguide.qnet.errors import HistoryTooLongError
from qguide.qnet.records import ROOT_ID
from qguide.qnet.types import Candidate, Message, SampleRequest, Sampling
from qguide.training.algorithms.tree import Tree, find_child, merge_branch
from qguide.training.options import JobOptions
from qguide.training.rollouts.episode import derived_seed, first_reply, seeded
from qguide.training.rollouts.game import Game
from qguide.training.rollouts.rollout import RolloutTask
from qguide.training.trajectory import Step


@dataclass(frozen=True, slots=True)
class SearchStatistics:
    """Visit counts N and mean values V by node id, the root's included.

    A node that was never visited is missing.
    """

    visit_counts: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    values: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def q_values(self) -> dict[int, float]:
        """Q̂ of every visited action: the value of the state that it leads to."""
        return {node_id: v for node_id, v in self.values.items() if node_id != ROOT_ID}


def select_child(tree: Tree, statistics: SearchStatistics, node_id: int, *, eta: float) -> int:
    """The child of highest UCT; ties go to the oldest, and unvisited children come first."""
    counts, total = statistics.visit_counts, statistics.visit_counts.get(node_id, 0)

    def uct(child: int) -> float:
        if not counts.get(child):
            return inf
        return statistics.values[child] + sqrt(eta * log(max(total, 1)) / counts[child])

    return max(tree.children[node_id], key=uct)


def select_path(tree: Tree, statistics: SearchStatistics, expanded: Set[int], *, eta: float) -> tuple[int, ...]:
    """Node ids from the root down to the first node that is not expanded.

    Nodes added by roll-outs count as unexpanded until their own candidates are drawn.
    """
    path = [ROOT_ID]
    while path[-1] in expanded and tree.children[path[-1]]:
        path.append(select_child(tree, statistics, path[-1], eta=eta))
    return tuple(path)


def back_up(statistics: SearchStatistics, path: Sequence[int], outcome: float) -> SearchStatistics:
    """Statistics with one more visit of every node of a path, which ended with this outcome."""
    counts, values = dict(statistics.visit_counts), dict(statistics.values)
    for node_id in path:
        counts[node_id] = counts.get(node_id, 0) + 1
        before = values.get(node_id, 0.0)
        values[node_id] = before + (outcome - before) / counts[node_id]
    return SearchStatistics(MappingProxyType(counts), MappingProxyType(values))


ROLLOUT = "rollout"
"""The `source` of nodes that a roll-out added."""


class Mcts(JobOptions):
    """Options of the search; the defaults are StepQ's where the paper gives them.

    Attributes:
        iterations: maximum number of selections from the root (m).
        width: number of actions drawn at an expansion (n).
        eta: weight of exploration in UCT.
        temperature: sampling temperature of all draws.
        max_steps: depth limit; 10 and 7 in the paper, whose episodes are shorter. 40 is ours, for
            ALFWorld.
        evaluate: "all" new children of an expanded node, as in the paper (figure 3a), or "one", the
            first of highest UCT, which costs fewer roll-outs.
        failure_value: outcome of a roll-out that reaches the limit; the paper does not state it.
        stop_at: outcome at which the search ends, at once.
        max_tokens: maximum number of completion tokens in one action.
    """

    iterations: int = Field(default=30, ge=1)
    width: int = Field(default=5, ge=1)
    eta: float = Field(default=2.0, ge=0)
    temperature: float = Field(default=1.0, ge=0)
    max_steps: int = Field(default=40, ge=1)
    evaluate: Literal["all", "one"] = "all"
    failure_value: float = -1.0
    stop_at: float = 1.0
    max_tokens: int = Field(default=128, ge=1)


@dataclass(slots=True)
class SearchedTree:
    """A search: its tree, its statistics and its cost.

    Attributes:
        misses: number of expansions without a new action.
        expanded: nodes whose candidates were drawn.
        outcomes: outcomes of the evaluations, in order; an iteration has one or several.
    """

    tree: Tree
    statistics: SearchStatistics = field(default_factory=SearchStatistics)
    expanded: set[int] = field(default_factory=set)
    iterations: int = 0
    outcomes: list[float] = field(default_factory=list)
    draws: int = 0
    misses: int = 0
    completion_tokens: int = 0

    def has_found(self, outcome: float) -> bool:
        """True if an evaluation had this outcome or a higher one."""
        return bool(self.outcomes) and max(self.outcomes) >= outcome


@dataclass(frozen=True, slots=True)
class _Player:
    """The game that is searched, and with what."""

    game: Game
    mcts: Mcts
    source: str

    def seeds(self, search: SearchedTree) -> tuple[int | str, ...]:
        """Parts from which the seeds of the next draws derive."""
        return (*self.game.seeds, len(search.outcomes))

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.mcts.temperature, self.mcts.max_tokens)


def search_task(game: Game, mcts: Mcts, *, source: str) -> RolloutTask[SearchedTree]:
    """Search one task; a rollout task."""
    player = _Player(game, mcts, source)
    search = SearchedTree(Tree((yield from game.first())))
    while search.iterations < mcts.iterations and not search.has_found(mcts.stop_at):
        search.iterations += 1
        path = select_path(search.tree, search.statistics, search.expanded, eta=mcts.eta)
        for evaluated in (yield from _grow(player, search, path)):
            if _is_open(search.tree, evaluated[-1], mcts) and search.has_found(mcts.stop_at):
                break
            below, outcome = yield from _evaluate(player, search, evaluated[-1])
            search.statistics = back_up(search.statistics, (*evaluated, *below), outcome)
            search.outcomes.append(outcome)
    return search


def _grow(player: _Player, search: SearchedTree, path: tuple[int, ...]) -> RolloutTask[list[tuple[int, ...]]]:
    """Expand the last node of a path; the paths to evaluate, those that need no roll-out first."""
    mcts, node_id = player.mcts, path[-1]
    if not _is_open(search.tree, node_id, mcts):
        return [path]
    known = len(search.tree.nodes)
    yield from _expand(player, search, node_id)
    tree = search.tree
    new = [node.id for node in tree.nodes[known:]]
    ended = [i for i in new if tree.node(i).step.ended]
    if mcts.evaluate == "all" and new:
        return [(*path, i) for i in (*ended, *(i for i in new if i not in ended))]
    if won := [i for i in ended if tree.node(i).step.reward >= mcts.stop_at]:
        return [(*path, won[0])]
    if not tree.children[node_id]:
        return [path]
    return [(*path, select_child(tree, search.statistics, node_id, eta=mcts.eta))]


def _expand(player: _Player, search: SearchedTree, node_id: int) -> RolloutTask[None]:
    search.expanded.add(node_id)
    before = _steps_to(search.tree, node_id)
    sampling = replace(player.sampling, seed=derived_seed(*player.seeds(search), "expand"))
    history = player.game.chat.history(search.tree.first_observation, before)
    try:
        candidates: list[Candidate] = yield SampleRequest(history, player.mcts.width, sampling, "branch")
    except HistoryTooLongError:
        return
    search.completion_tokens += sum(candidate.completion_tokens for candidate in candidates)
    known = len(search.tree.nodes)
    for reply in [c.message for c in candidates if c.finished]:
        if find_child(search.tree, node_id, reply) is None:
            [step] = yield from _play(player, search, before, [reply], max_steps=len(before) + 1)
            # A cut-off that is only ours is no outcome.
            step = step if step.ended else replace(step, reward=0.0)
            search.tree, _ = merge_branch(search.tree, [step], at=node_id, source=player.source)
    search.misses += len(search.tree.nodes) == known


def _evaluate(player: _Player, search: SearchedTree, node_id: int) -> RolloutTask[tuple[tuple[int, ...], float]]:
    """Outcome below a node, by its reward or a roll-out, and the ids of the roll-out's nodes."""
    if not _is_open(search.tree, node_id, player.mcts):
        return (), _outcome(_steps_to(search.tree, node_id), player.mcts)
    before = _steps_to(search.tree, node_id)
    steps = yield from _play(player, search, before, [], max_steps=player.mcts.max_steps)
    search.draws += 1
    search.tree, branch = merge_branch(search.tree, steps, at=node_id, source=ROLLOUT)
    return branch, _outcome([*before, *steps], player.mcts)


def _play(
    player: _Player, search: SearchedTree, before: Sequence[Step], replies: Sequence[Message], *, max_steps: int
) -> RolloutTask[tuple[Step, ...]]:
    """New steps of an episode that repeats `before`, takes `replies`, and is then rolled out."""
    agent = first_reply(seeded(player.sampling, *player.seeds(search), "rollout"), role="rollout")
    steps, episode = yield from player.game.play_on(
        search.tree.first_observation, before, agent, max_steps=max_steps, replies=replies
    )
    search.completion_tokens += episode.completion_tokens
    return steps


def _is_open(tree: Tree, node_id: int, mcts: Mcts) -> bool:
    ended = node_id != ROOT_ID and tree.node(node_id).step.ended
    return not ended and tree.depth(node_id) < mcts.max_steps


def _steps_to(tree: Tree, node_id: int) -> list[Step]:
    return [node.step for node in tree.path(node_id)]


def _outcome(steps: Sequence[Step], mcts: Mcts) -> float:
    """Reward of an episode that ended; `failure_value` of one that was cut off."""
    return steps[-1].reward if steps and steps[-1].ended else mcts.failure_value
