"""Exploration tree of one task, from a policy's own trajectories (QLASS algorithm 2).

QLASS (Lin, Tang et al., 2025) learns how an episode will end if an action is taken:

    1. clone the expert's episodes                                      (4.1; jobs/sft.py)
    2. until no node waits: draw a trajectory from a node of depth <= D with fewer than W children,
       merge it, and let its nodes wait unless its outcome is 0         (algorithm 2; here)
    3. Q(s, a) = r + gamma * max over a' of Q(s', a')                   (7; algorithms/backups.py)
    4. loss = mean over tokens of (QNet(s, a) - Q(s, a))^2              (11; q_training/loss_terms.py)
    5. at each step take the draw of highest Q, of M                    (4.4; evaluation/methods.py)

Two things differ from the published algorithm (ours). A draw from a node must start with an action
that none of its children has: samples of a trained policy mostly repeat each other, and a tree
without branches has no siblings to compare. And the number of trajectories is limited; if there is
an expert, half of them are reserved for its branch, because nodes on a successful path teach the
most.

Q*Agent is QLASS's earlier version, on WebShop: steps 1 to 5, and the M draws of step 5 may be made
under paraphrases of the task (`qnet/decision/perturbation.py`), because a policy that is sure of
its action repeats it. Any environment's task is paraphrased here (ours). Q*Agent-ST clones the
expert's episodes and the guided ones (`collect`, then `sft`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

from pydantic import Field

from qguide.qnet.errors import HistoryTooLongError
from qguide.qnet.records import ROOT_ID
from qguide.qnet.types import Candidate, DrawRole, History, Message, SampleRequest, Sampling
from qguide.training.algorithms.tree import EXPERT, Tree, find_child, merge_branch
from qguide.training.options import JobOptions
from qguide.training.rollouts.episode import derived_seed, first_reply, seeded
from qguide.training.rollouts.game import Game
from qguide.training.rollouts.rollout import RolloutTask, RunBudget
from qguide.training.trajectory import Drawn, Step, drawn_of


class Exploration(JobOptions):
    """Options of a tree's growth; the defaults are QLASS's for ALFWorld where the paper gives them.

    Attributes:
        width: maximum number of children of a node (W).
        depth: depth of the deepest node that is expanded (D); trajectories go on below it.
        max_steps: actions from the root after which a trajectory is cut off.
        max_draws: maximum number of trajectories per tree.
        candidates: number of actions drawn at once for a new branch; the first one that no child of
            the node has starts it.
        temperature: sampling temperature of all draws to which the next two fields do not apply.
        branch_temperature: sampling temperature of the candidates for a branch; None is
            `temperature`.
        greedy_rollout: draw all other actions at temperature 0, so that Q is the value of the
            greedy agent after a deviation.
        policy_prefix_steps: maximum number of actions at the start of the first trajectory that
            are drawn at the branch temperature; the seed decides how many. With these, the tree
            starts in the policy's own states even if another agent plays the roll-outs.
        max_tokens: maximum number of completion tokens in one action.
        stop_on_zero: do not expand the nodes of a branch with outcome 0.
        expand: node to expand next: the one that has waited longest, or a random one.
    """

    width: int = Field(default=2, ge=1)
    depth: int = Field(default=8, ge=0)
    max_steps: int = Field(default=40, ge=1)
    max_draws: int = Field(default=48, ge=1)
    candidates: int = Field(default=4, ge=1)
    temperature: float = Field(default=0.7, ge=0)
    branch_temperature: float | None = Field(default=None, ge=0)
    greedy_rollout: bool = False
    policy_prefix_steps: int = Field(default=0, ge=0)
    max_tokens: int = Field(default=128, ge=1)
    stop_on_zero: bool = True
    expand: Literal["queue", "random"] = "queue"

    @property
    def deviating_action(self) -> Sampling:
        """Sampling of an action that deviates from a node's children."""
        branch = self.branch_temperature
        return Sampling(self.temperature if branch is None else branch, self.max_tokens)

    @property
    def other_actions(self) -> Sampling:
        """Sampling of all other actions."""
        return Sampling(0.0 if self.greedy_rollout else self.temperature, self.max_tokens)

    @property
    def rollout_role(self) -> DrawRole:
        """Role of all other draws: a greedy roll-out values an action, others are the agent's."""
        return "rollout" if self.greedy_rollout else "act"


@dataclass(frozen=True, slots=True)
class ExploredTree:
    """A finished tree and its cost.

    Attributes:
        misses: number of attempts at a branch in which no candidate was new.
    """

    tree: Tree
    draws: int
    misses: int
    completion_tokens: int


def explore_task(
    game: Game,
    exploration: Exploration,
    *,
    source: str,
    expert: Sequence[Step] = (),
    mistakes: Collection[int] = (),
    budget: RunBudget | None = None,
) -> RolloutTask[ExploredTree]:
    """Explore one task, as a rollout task.

    Args:
        expert: the expert's trajectory, merged and expanded after the policy's own.
        mistakes: indices of its steps that are not to be imitated.
        budget: when it is spent, a tree with a trajectory gets no more.
    """
    search = _Search(game, Tree((yield from game.first())), exploration, budget or RunBudget())
    search.push((ROOT_ID,))
    own_draws = exploration.max_draws // 2 if expert else exploration.max_draws
    yield from _expand(search, source, most_draws=own_draws)
    if expert:
        search.tree, branch = merge_branch(search.tree, expert, source=EXPERT, mistakes=mistakes)
        search.push(branch, first=True)
        yield from _expand(search, source, most_draws=exploration.max_draws)
    return ExploredTree(search.tree, search.draws, search.misses, search.completion_tokens)


@dataclass(slots=True)
class _Search:
    """State of one exploration: the tree, the queue E and the counts."""

    game: Game
    tree: Tree
    exploration: Exploration
    budget: RunBudget
    waiting: list[int] = field(default_factory=list)
    misses_in_a_row: dict[int, int] = field(default_factory=dict)
    draws: int = 0
    misses: int = 0
    completion_tokens: int = 0

    def history(self, node_id: int) -> History:
        """The state after a node, as the policy sees it before its next action."""
        steps = [node.step for node in self.tree.path(node_id)]
        return self.game.chat.history(self.tree.first_observation, steps)

    def push(self, node_ids: Sequence[int], *, first: bool = False) -> None:
        new = [node_id for node_id in node_ids if self._is_open(node_id)]
        self.waiting = new + self.waiting if first else self.waiting + new

    def pop(self) -> int | None:
        """The next node with room for a child, or None if there is none left."""
        while self.waiting:
            chosen = 0
            if self.exploration.expand == "random":
                pick = Random(derived_seed(*self.seed_parts, "pick"))
                chosen = pick.randrange(len(self.waiting))
            if self._is_open(node_id := self.waiting.pop(chosen)):
                return node_id
        return None

    @property
    def seed_parts(self) -> tuple[int | str, ...]:
        """Parts from which the seed of the next draw is derived."""
        return (*self.game.seeds, self.draws + self.misses)

    @property
    def policy_prefix_steps(self) -> int:
        """Number of actions at the start of the next trajectory that are drawn like branches."""
        if self.draws or not self.exploration.policy_prefix_steps:
            return 0
        rng = Random(derived_seed(*self.game.seeds, "own"))
        return rng.randint(0, self.exploration.policy_prefix_steps)

    def count_miss(self, node_id: int) -> None:
        self.misses += 1
        self.misses_in_a_row[node_id] = self.misses_in_a_row.get(node_id, 0) + 1

    def count_draw(self, node_id: int) -> None:
        self.draws += 1
        self.misses_in_a_row[node_id] = 0

    def _is_open(self, node_id: int) -> bool:
        depth, limits = self.tree.depth(node_id), self.exploration
        return (
            len(self.tree.children[node_id]) < limits.width
            and depth <= limits.depth
            and depth < limits.max_steps
            and self.misses_in_a_row.get(node_id, 0) < limits.width
            and not (node_id != ROOT_ID and self.tree.node(node_id).step.ended)
        )


def _expand(search: _Search, source: str, *, most_draws: int) -> RolloutTask[None]:
    """Expand waiting nodes until none is left (QLASS algorithm 2, the loop over E)."""
    while search.draws < most_draws and (node_id := search.pop()) is not None:
        if search.draws and search.budget.reason:
            return
        reply, drawn = yield from _draw_first_action(search, node_id)
        if reply is None:
            search.count_miss(node_id)
        else:
            first, *onward = yield from _roll_out(search, node_id, reply)
            steps = [replace(first, drawn=drawn), *onward]
            search.count_draw(node_id)
            search.tree, branch = merge_branch(search.tree, steps, at=node_id, source=source)
            if steps[-1].reward != 0 or not search.exploration.stop_on_zero:
                search.push(branch)
        search.push((node_id,))


def _draw_first_action(search: _Search, node_id: int) -> RolloutTask[tuple[Message | None, tuple[Drawn, ...]]]:
    """The first candidate whose action no child of the node has, or None, and all candidates."""
    settings = search.exploration
    deviates = bool(search.tree.children[node_id])
    own = deviates or search.policy_prefix_steps > 0
    drawn = settings.deviating_action if own else settings.other_actions
    sampling = replace(drawn, seed=derived_seed(*search.seed_parts, "first"))
    n = settings.candidates if deviates else 1
    role = "branch" if deviates else "act" if own else settings.rollout_role
    history = search.history(node_id)
    try:
        candidates: list[Candidate] = yield SampleRequest(history, n, sampling, role)
    except HistoryTooLongError:
        return None, ()
    search.completion_tokens += sum(candidate.completion_tokens for candidate in candidates)
    replies = [candidate.message for candidate in candidates if candidate.finished]
    new = (reply for reply in replies if find_child(search.tree, node_id, reply) is None)
    whole = len(replies) == len(candidates)
    return next(new, None), drawn_of(replies, first_greedy=sampling.first_is_greedy and whole)


def _roll_out(search: _Search, node_id: int, reply: Message) -> RolloutTask[tuple[Step, ...]]:
    """Take `reply` in the node's state and let the policy play on to the end.

    The trajectory is cut off when its history outgrows the policy's context.
    """
    settings = search.exploration
    own = first_reply(seeded(settings.deviating_action, *search.seed_parts))
    other = first_reply(seeded(settings.other_actions, *search.seed_parts), role=settings.rollout_role)
    policy_prefix_steps = search.policy_prefix_steps
    before = tuple(node.step for node in search.tree.path(node_id))
    steps, episode = yield from search.game.play_on(
        search.tree.first_observation,
        before,
        lambda history, step: (own if step < policy_prefix_steps else other)(history, step),
        max_steps=settings.max_steps,
        replies=[reply],
    )
    search.completion_tokens += episode.completion_tokens
    return steps
