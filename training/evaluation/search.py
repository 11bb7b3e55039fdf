"""Whole trajectories, ranked by the values of the states that they reached (AgentRM's best-of-n).

AgentRM (Xia et al., 2025) searches trees with a policy, regresses a model on the states' values, and
chooses by it whole trajectories, or steps in a beam search (`beam_search.py`):

    V(s) = mean outcome of the roll-outs through s          (explore with strategy = "mcts"; label)
    loss = (M(s) - V(s))^2                                  (train-qnet, read_at = "observation")
    chosen: the trajectory with the highest M at its end    (`best_of_n`, verified)

Drawing may end early, at a trajectory whose value is `stop_at` (ours).

The Q model sees only the chat: it learns neither a reward nor that an episode has ended.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

from qguide.qnet.errors import ConfigError, EnvironmentFailureError, HistoryTooLongError
from qguide.qnet.types import Scorer, ScoreRequest, ScoreResult
from qguide.training.evaluation.methods import Play, q_guided
from qguide.training.evaluation.paraphrased import under_paraphrase
from qguide.training.evaluation.records import GUIDED, VALUING, EpisodeFailure, EpisodeRow, MethodName
from qguide.training.rollouts.episode import Agent, Episode, first_reply, seeded
from qguide.training.rollouts.harness import PlayableTask
from qguide.training.rollouts.rollout import RolloutTask, value_request

if TYPE_CHECKING:
    from qguide.training.evaluation.reflexion import Reflexion


@dataclass(frozen=True, slots=True)
class TaskTrials:
    """One task and everything that its trials share; see `EvaluateConfig`.

    Attributes:
        budgets: for each seed, the completion tokens of `budget_of` once it is played.
        budget_of: the guided method whose tokens either best-of-n gets; None if none is played,
            and it draws `trajectories`.
        trajectories: maximum number of trajectories of either best-of-n, beside that budget.
        observes: the Q model of methods that try before they choose is read after the observation;
            otherwise at the action.
        paraphrases: of the task; some if a method draws under them.
    """

    playable: PlayableTask
    play: Play
    budgets: dict[int, int]
    budget_of: MethodName | None
    trajectories: int
    guided_trajectories: int
    observes: bool
    stop_at: float | None
    beams: int
    lats_iterations: int
    reflexion: "Reflexion"
    paraphrases: Sequence[str]
    on_row: Callable[[EpisodeRow], None]
    on_failure: Callable[[EpisodeFailure], None]

    def episode(self, agent: Agent) -> RolloutTask[Episode]:
        """The episode of an agent, whose draws have seeds of their own."""
        return self.playable.game(0).play(agent, max_steps=self.play.max_steps)

    def succeeds(self, episode: Episode) -> bool:
        """True if an episode succeeded by the environment's own criterion."""
        return self.playable.environment.is_success(episode.reward, episode.terminated)


@dataclass(frozen=True, slots=True)
class Searched:
    """Trajectories that were played, and the chosen one.

    Attributes:
        values: Q of the states of each trajectory that were valued, in order; empty for a method
            that did not ask.
    """

    episodes: list[Episode]
    chosen: int
    values: tuple[tuple[float, ...], ...] = ()
    scored_tokens: int = 0
    reflections: tuple[str, ...] = ()
    reflection_tokens: int = 0
    excess_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TrajectoryBudget:
    """Limits of the trajectories of one trial, of which a method keeps one.

    Attributes:
        tokens: completion tokens of all of them; None for no limit.
    """

    trajectories: int
    tokens: int | None = None

    def goes_on(self, episodes: Sequence[Episode]) -> bool:
        """True if another trajectory may be begun after these."""
        if not episodes:
            return True
        if len(episodes) >= self.trajectories:
            return False
        if self.tokens is None:
            return True
        # An episode without tokens (its first history was too long) would be repeated forever.
        return episodes[-1].completion_tokens > 0 and _spent(episodes) < self.tokens

    def affords(self, episodes: Sequence[Episode], episode: Episode) -> bool:
        """True if an episode after these ends within the budget; the first one always counts.

        One that does not would have been cut off at the budget, without an outcome.
        """
        if not episodes or self.tokens is None:
            return True
        return _spent(episodes) + episode.completion_tokens <= self.tokens

    def excess(self, episodes: Sequence[Episode]) -> int:
        """Tokens above the budget: those of a first episode that is longer than all of it."""
        return 0 if self.tokens is None else max(0, _spent(episodes) - self.tokens)


def best_of_n(
    shared: TaskTrials, seed: int, *, paraphrased: bool = False, verified: bool = False
) -> RolloutTask[Searched]:
    """Play whole trajectories until the budget is spent; the one that would exceed it is left out.

    Args:
        paraphrased: trajectory k > 0 is drawn under paraphrase k - 1, round and round.
        verified: take the one of highest value, not the one of highest true reward.
    """
    budget, task_id = _budget(shared, seed), shared.playable.task.id
    episodes: list[Episode] = []
    values: list[tuple[float, ...]] = []
    scored_tokens = 0
    while budget.goes_on(episodes):
        agent = first_reply(seeded(shared.play.sampling, seed, task_id, "best-of-n", len(episodes)))
        if paraphrased and episodes:
            text = shared.paraphrases[(len(episodes) - 1) % len(shared.paraphrases)]
            agent = under_paraphrase(agent, text, shared.playable.environment.task_markers)
        episode = yield from shared.episode(agent)
        if not budget.affords(episodes, episode):
            break
        episodes.append(episode)
        if verified:
            value, tokens = yield from _last_value(episode, observes=shared.observes)
            values.append(value)
            scored_tokens += tokens
            if shared.stop_at is not None and max(value, default=-inf) >= shared.stop_at:
                break
    best = values.index(max(values)) if verified else _best_by_reward(episodes)
    return Searched(episodes, best, tuple(values), scored_tokens, excess_tokens=budget.excess(episodes))


def _budget(shared: TaskTrials, seed: int) -> TrajectoryBudget:
    if shared.budget_of is None:
        return TrajectoryBudget(shared.trajectories)
    if seed not in shared.budgets:
        raise EnvironmentFailureError(
            f"best-of-n has no budget: the {shared.budget_of} episode of seed {seed} failed; resume the run"
        )
    return TrajectoryBudget(shared.trajectories, shared.budgets[seed])


def q_guided_n(shared: TaskTrials, seed: int) -> RolloutTask[Searched]:
    """Play N guided trajectories, the first of which is q-guided's (QLASS, algorithm 4)."""
    episodes: list[Episode] = []
    for number in range(shared.guided_trajectories):
        agent = q_guided(shared.play, seed, shared.playable.task.id, trajectory=number)
        episodes.append((yield from shared.episode(agent)))
    return Searched(episodes, _best_by_reward(episodes))


def _best_by_reward(episodes: Sequence[Episode]) -> int:
    """Index of the episode of highest true reward, the first of equal ones."""
    return max(range(len(episodes)), key=lambda number: episodes[number].reward)


def _last_value(episode: Episode, *, observes: bool) -> RolloutTask[tuple[tuple[float, ...], int]]:
    """Q of a trajectory's last action, empty where there is none to read, and the tokens it cost."""
    if not episode.steps:
        return (), 0
    history = episode.chat.history(episode.first_observation, episode.steps[:-1])
    try:
        result: ScoreResult = yield value_request(history, [episode.steps[-1]], observes=observes)
    except HistoryTooLongError:  # the Q model's context is shorter than the policy's
        return (), 0
    return result.q_values, result.computed_tokens


def _spent(episodes: Sequence[Episode]) -> int:
    return sum(episode.completion_tokens for episode in episodes)


COMPARING: Final = frozenset({"adaptive"}) | VALUING
"""Methods that compare Q of different states."""


@dataclass(frozen=True, slots=True)
class ValueModels:
    """Q models, either of which may be missing.

    Attributes:
        guide: chooses among candidates; it values what was tried, too, without a `verifier`.
        verifier: values what was tried, after its observation.
    """

    guide: Scorer | None
    verifier: Scorer | None = None

    @property
    def observes(self) -> bool:
        """True if what was tried is valued after its observation."""
        valuing = self.verifier or self.guide
        return valuing is not None and valuing.reads_observation

    @property
    def scorer(self) -> Scorer | None:
        """One scorer that gives each request to the Q model that reads it."""
        if self.guide is None or self.verifier is None:
            return self.guide or self.verifier
        return _RoutedScorer(self.guide, self.verifier)

    def require_fit(self, methods: Collection[str]) -> None:
        """Refuse a Q model whose values a method cannot use."""
        compared = sorted(COMPARING.intersection(methods))
        ranks = self.guide is not None and self.guide.ranks
        if compared and ranks and (self.verifier is None or "adaptive" in compared):
            raise ConfigError(
                f"qnet is a judge that ranks the candidates of one step, but {compared[0]} "
                "compares Q of different steps; use a judge with mode = 'score', or leave it out"
            )
        guided = sorted(GUIDED.intersection(methods))
        if guided and self.guide is not None and self.guide.reads_observation:
            raise ConfigError(
                f"qnet reads after the observation, but {guided[0]} chooses before it; name it as "
                "verifier, and a Q model that reads at the action as qnet"
            )
        if self.verifier is not None and not self.verifier.reads_observation:
            raise ConfigError(
                "verifier reads Q at the action; name it as qnet and leave verifier empty, or "
                "train one with read_at = 'observation'"
            )
        if self.verifier is not None and VALUING.isdisjoint(methods):
            raise ConfigError(f"no method uses the verifier; add {' or '.join(sorted(VALUING))} to methods")


class _RoutedScorer(Scorer):
    """Requests with observations go to one scorer, the others to another."""

    reads_observation = True

    def __init__(self, guide: Scorer, verifier: Scorer) -> None:
        self.name = f"{guide.name}, {verifier.name}"
        self._guide = guide
        self._verifier = verifier

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate, in the requests' order."""
        answers = {
            observed: iter(scorer.score([r for r in requests if bool(r.observations) == observed]))
            for observed, scorer in ((False, self._guide), (True, self._verifier))
        }
        return [next(answers[bool(request.observations)]) for request in requests]
