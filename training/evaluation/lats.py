"""Language agent tree search with a Q model as its value (LATS; Zhou and others, 2023).

Each iteration walks from the root to the most promising leaf by UCT, expands it with M candidates
and goes on with the one of highest Q, step by step to the end; the true outcome is backed up along
the way (`exploration/mcts.py`):

    UCT(s) = V(s) + w * sqrt(ln N(parent) / N(s))
    V(s) <- (V(s) * (N(s) - 1) + r) / N(s)

In the paper the language model itself values states, and its values are in V from the start; here
Q only orders a node's new children, and V is of outcomes alone. In the paper the model also reflects
on failures; nothing reflects here.

The search steps the environment with every candidate and sees every outcome, which no server can.
"""

from qguide.qnet.errors import HistoryTooLongError
from qguide.qnet.records import ROOT_ID
from qguide.qnet.types import Candidate, SampleRequest, ScoreResult
from qguide.training.algorithms.tree import Tree, merge_branch
from qguide.training.evaluation.search import Searched, TaskTrials
from qguide.training.exploration.mcts import SearchStatistics, back_up, select_child, select_path
from qguide.training.rollouts.episode import AgentStep, Episode, seeded
from qguide.training.rollouts.rollout import RolloutTask, value_request
from qguide.training.trajectory import Step, reply_key

EXPLORATION = 1.0
"""The weight of exploration in UCT, which is the paper's."""


class TreeSearch:
    """Tree search of one task."""

    def __init__(self, shared: TaskTrials, seed: int) -> None:
        self._game = shared.playable.game(seed)
        self._options = shared.play
        self._observes = shared.observes
        self._iterations, self._succeeds = shared.lats_iterations, shared.succeeds
        self._sampling_at = seeded(shared.play.drawing, *self._game.seeds)
        self._tree = Tree("")
        self._statistics = SearchStatistics()
        self._expanded: set[int] = set()
        self._choices: list[AgentStep] = []

    def search(self) -> RolloutTask[Searched]:
        """Search until a trajectory succeeds, at most `lats_iterations` times.

        The first trajectory is that of q-guided where the Q model is read at the action.
        """
        self._tree = Tree((yield from self._game.first()))
        episodes: list[Episode] = []
        while len(episodes) < self._iterations:
            episode = yield from self._iterate()
            episodes.append(episode)
            if self._succeeds(episode):
                break
        rewards = [episode.reward for episode in episodes]
        return Searched(episodes, rewards.index(max(rewards)))

    def _iterate(self) -> RolloutTask[Episode]:
        self._choices = []
        path = list(select_path(self._tree, self._statistics, self._expanded, eta=EXPLORATION))
        too_long = False
        while self._is_open(path[-1]):
            try:
                yield from self._expand(path[-1])
            except HistoryTooLongError:
                too_long = True
                break
            path.append(select_child(self._tree, self._statistics, path[-1], eta=EXPLORATION))
        steps = [node.step for node in self._tree.path(path[-1])]
        outcome = steps[-1].reward if steps else 0.0
        self._statistics = back_up(self._statistics, path, outcome)
        invalid = sum(not step.valid for step in steps)
        return Episode(
            self._tree.first_observation, tuple(steps), tuple(self._choices), invalid, too_long, self._game.chat
        )

    def _is_open(self, node_id: int) -> bool:
        """False if the episode has ended here, or its state has been expanded in vain."""
        ended = node_id != ROOT_ID and self._tree.node(node_id).step.ended
        too_deep = self._tree.depth(node_id) >= self._options.max_steps
        return not ended and not too_deep and node_id not in self._expanded

    def _expand(self, node_id: int) -> RolloutTask[None]:
        """Draw candidates in a node's state, step each, and add them, the highest Q first."""
        before = [node.step for node in self._tree.path(node_id)]
        self._expanded.add(node_id)
        history = self._game.chat.history(self._tree.first_observation, before)
        candidates: list[Candidate] = yield SampleRequest(
            history, self._options.candidates, self._sampling_at(len(before))
        )
        distinct = {reply_key(c.message): c.message for c in reversed(candidates)}
        tried: list[Step] = []
        for reply in reversed(distinct.values()):
            first = self._tree.first_observation
            tried.append((yield from self._game.try_reply(first, before, reply)))
        result: ScoreResult = yield value_request(history, tried, observes=self._observes)
        # UCT takes the oldest of the children that were never visited.
        order = sorted(range(len(tried)), key=lambda i: -result.q_values[i])
        for index in order:
            self._tree, _ = merge_branch(self._tree, [tried[index]], at=node_id, source="policy")
        self._choices.append(
            AgentStep(
                message=tried[order[0]].message,
                completion_tokens=sum(candidate.completion_tokens for candidate in candidates),
                distinct_candidates=len(tried),
                scored_tokens=result.computed_tokens,
            )
        )
