"""Decision groups of one episode: draw candidates at every step, then value each of them.

An agent chooses between its own policy's candidates in states that the policy reached itself. A Q
model that can rank an expert's mistakes cannot necessarily rank these candidates. So the policy
plays the episode (or the guided agent does, as policy iteration), and another agent plays every
distinct candidate to the end in a replayed environment.
"""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from qguide.qnet.decision.selection import prior_of, select
from qguide.qnet.errors import HistoryTooLongError
from qguide.qnet.records import NodeRow, RolloutRow, TreeRow
from qguide.qnet.types import Candidate, History, SampleRequest, Sampling, ScoreRequest, ScoreResult
from qguide.training.data.decision_groups import GroupDecision, candidate_node, decided_nodes, outcomes_differ
from qguide.training.environment import Expert, Task
from qguide.training.options import JobOptions
from qguide.training.rollouts.episode import Agent, AgentStep, Episode, derived_seed
from qguide.training.rollouts.game import Game, ReplayDiffersError
from qguide.training.rollouts.rollout import ModelRequest, RolloutTask, RunBudget, SampleRequests
from qguide.training.trajectory import reply_key, text_reply

GoOn = Literal["random", "first", "guided"]


class Draws(JobOptions):
    """Draws of candidates in each state.

    Attributes:
        n: number of draws.
        temperature: sampling temperature, which does not apply to the greedy draw.
        greedy: draw the first one greedily.
    """

    n: int = Field(ge=1)
    temperature: float = Field(gt=0)
    greedy: bool = False


class Decisions(JobOptions):
    """Options of an episode and of the draws at each of its steps.

    Attributes:
        draws: the candidates of a state. The episode goes on with one of the first entry, which
            should be drawn as the served agent draws; the other entries only add siblings.
        go_on: the candidate with which the episode goes on: a random one of the distinct actions,
            the first drawn, or the one of highest Q ("guided").
        tau: with "guided", temperature of Q beside the log share of the draws; None is the argmax
            of Q.
        valued_share: share of the states, chosen at random, whose candidates are valued; of the
            others only the taken candidate is kept. Roll-outs of a policy cost far more than draws,
            and the states of one episode are much alike.
        max_steps: actions after which the episode is cut off.
        horizon: maximum number of steps in a continuation, the candidate included.
        total_steps: actions after which a continuation is cut off, those before the candidate
            included; None leaves it to `horizon`. Step rewards are defined under the episode's own
            limit (IPR 3.2), which a candidate must not outlive.
        max_tokens: maximum number of completion tokens in one reply.
    """

    draws: tuple[Draws, ...] = Field(
        default=(Draws(n=5, temperature=0.7, greedy=True), Draws(n=5, temperature=1.0)), min_length=1
    )
    go_on: GoOn = "random"
    tau: float | None = Field(default=None, ge=0)
    valued_share: float = Field(default=1.0, gt=0, le=1)
    max_steps: int = Field(default=40, ge=1)
    horizon: int = Field(default=50, ge=1)
    total_steps: int | None = Field(default=None, ge=1)
    max_tokens: int = Field(default=128, ge=1)

    @model_validator(mode="after")
    def _an_episode_fits_into_its_total(self) -> Self:
        if self.total_steps is not None and self.total_steps < self.max_steps:
            raise ValueError(
                f"total_steps is {self.total_steps}, but an episode has up to max_steps = "
                f"{self.max_steps} actions; raise total_steps or lower max_steps"
            )
        return self

    def last_step(self, step: int) -> int:
        """Actions after which a continuation from the state after `step` actions is cut off."""
        limit = step + self.horizon
        return limit if self.total_steps is None else min(limit, self.total_steps)

    def sample_requests(self, history: History, *seed_parts: object) -> SampleRequests:
        """All draws of one state, each with a seed of its own.

        The first entry's seed equals that of `qguide.training.evaluation.methods`, so an
        evaluation with the same seed and history chooses among the same candidates.
        """
        return SampleRequests(
            tuple(
                SampleRequest(
                    history,
                    draws.n,
                    Sampling(
                        draws.temperature,
                        self.max_tokens,
                        seed=derived_seed(*seed_parts, *([number] if number else [])),
                        first_greedy=draws.greedy,
                    ),
                    role="branch" if number else "act",
                )
                for number, draws in enumerate(self.draws)
            )
        )


@dataclass(frozen=True, slots=True)
class PlayedDecisions:
    """An episode's decisions and the cost of their draws."""

    first_observation: str
    decisions: tuple[GroupDecision, ...]
    completion_tokens: int


def decided_row(task: Task, environment: str, system: str | None, played: PlayedDecisions) -> TreeRow:
    """A played episode as a row."""
    return TreeRow(
        task_id=task.id,
        kind=task.kind,
        environment=environment,
        first_observation=played.first_observation,
        system=system,
        nodes=decided_nodes(played.decisions),
        draws=1,
        completion_tokens=played.completion_tokens,
    )


@dataclass(slots=True)
class _Drawn:
    """One state's distinct candidates, the first drawn of each action.

    Attributes:
        eligible: the episode may go on with the first so many candidates.
    """

    candidates: list[Candidate]
    counts: list[int]
    eligible: int
    greedy: int | None
    completion_tokens: int
    chosen: int = 0


Continuing = Callable[[int, int, int], Agent]
"""Function from (step, candidate, repetition) to the agent that plays on from there."""


def play_decisions(
    game: Game,
    settings: Decisions,
    continuing: Continuing,
    *,
    source: str,
    repetitions: int = 1,
    first: int | None = None,
    budget: RunBudget | None = None,
) -> RolloutTask[PlayedDecisions]:
    """Play one episode, then each of its candidates to the end, as a rollout task.

    Args:
        first: number of them that come first; the others only where outcomes in the state vary.
        budget: when it is spent, no further state is valued.
    """
    made: list[_Drawn] = []
    agent = _noting(settings, game, made)
    episode = yield from game.play(agent, max_steps=settings.max_steps)
    if not made:
        raise HistoryTooLongError(f"{game.seeds[-1]} leaves no room for a reply; use a longer context")
    valuation = _Valuation(game, continuing, repetitions, first or repetitions, settings, source)
    budget, decisions = budget or RunBudget(), dict[int, GroupDecision]()
    for step in sorted(range(len(made)), key=lambda step: -len(made[step].candidates)):  # a budget may end it
        drawn = made[step]
        if not budget.reason and _is_valued(drawn, settings, (*game.seeds, step)):
            decisions[step] = yield from valuation.decision(episode, step, drawn)
            budget.found += outcomes_differ(decisions[step])
        else:
            decisions[step] = _taken_alone(drawn, step, episode, source=source)
    tokens = sum(drawn.completion_tokens for drawn in made)
    return PlayedDecisions(episode.first_observation, tuple(decisions[step] for step in sorted(decisions)), tokens)


def _is_valued(drawn: _Drawn, settings: Decisions, seed_parts: tuple[object, ...]) -> bool:
    if len(drawn.candidates) == 1:
        return False
    return Random(derived_seed(*seed_parts, "valued")).random() < settings.valued_share


def _taken_alone(drawn: _Drawn, step: int, episode: Episode, *, source: str) -> GroupDecision:
    """The decision of a state that is not valued, with the episode itself as the roll-out."""
    taken = _node(drawn, drawn.chosen, step, [episode], source=source)
    return GroupDecision((taken,), 0, 0 if drawn.greedy == drawn.chosen else None)


@dataclass(frozen=True, slots=True)
class _Valuation:
    """Continuations of every candidate of a state, played in replayed environments."""

    game: Game
    continuing: Continuing
    repetitions: int
    first: int
    settings: Decisions
    source: str

    def decision(self, episode: Episode, step: int, drawn: _Drawn) -> RolloutTask[GroupDecision]:
        played: list[list[Episode]] = [[] for _ in drawn.candidates]
        for repetitions in (range(self.first), range(self.first, self.repetitions)):
            for index, candidate in enumerate(drawn.candidates):
                if not (played[index] and played[index][0].steps[step].ended):
                    agents = [self.continuing(step, index, number) for number in repetitions]
                    played[index] += yield from self._play_on(episode, step, candidate, agents)
            if len({one.reward for episodes in played for one in episodes}) == 1:
                break
        for one in played[drawn.chosen]:
            if one.steps[step] != episode.steps[step]:
                raise ReplayDiffersError(f"after {step + 1} actions", one.steps[step], episode.steps[step])
        nodes = [_node(drawn, index, step, episodes, source=self.source) for index, episodes in enumerate(played)]
        return GroupDecision(tuple(nodes), drawn.chosen, drawn.greedy)

    def _play_on(
        self, episode: Episode, step: int, candidate: Candidate, agents: Sequence[Agent]
    ) -> RolloutTask[list[Episode]]:
        """The continuations of one candidate; just one if the candidate ends the episode."""
        before = episode.steps[:step]
        max_steps = self.settings.last_step(step)
        episodes: list[Episode] = []
        for agent in agents:
            new, played = yield from self.game.play_on(
                episode.first_observation, before, agent, max_steps=max_steps, replies=[candidate.message]
            )
            episodes.append(played)
            if new[-1].ended and len(new) == 1:
                break
        return episodes


def _node(drawn: _Drawn, index: int, step: int, episodes: Sequence[Episode], *, source: str) -> NodeRow:
    rollouts = [
        RolloutRow(outcome_reward=episode.reward, steps=len(episode.steps) - step, terminated=episode.terminated)
        for episode in episodes
    ]
    candidate, count = drawn.candidates[index], drawn.counts[index]
    return candidate_node(candidate, count, episodes[0].steps[step], rollouts, source=source)


def _noting(settings: Decisions, game: Game, made: list[_Drawn]) -> Agent:
    """The agent that plays the episode and appends its decisions to `made`."""

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        several: list[list[Candidate]] = yield settings.sample_requests(history, *game.seeds, step)
        drawn = _distinct(several, greedy=settings.draws[0].greedy)
        if drawn.eligible > 1:
            drawn.chosen = yield from _chosen(settings, history, drawn, (*game.seeds, step))
        made.append(drawn)
        reply = drawn.candidates[drawn.chosen].message
        return AgentStep(reply, drawn.completion_tokens, len(drawn.candidates))

    return choose


def _chosen(
    settings: Decisions, history: History, drawn: _Drawn, seed_parts: tuple[object, ...]
) -> Generator[ModelRequest, Any, int]:
    match settings.go_on:
        case "first":
            return 0
        case "random":
            return Random(derived_seed(*seed_parts, "pick")).randrange(drawn.eligible)
        case "guided":
            eligible = drawn.candidates[: drawn.eligible]
            messages = tuple(candidate.message for candidate in eligible)
            counts = tuple(drawn.counts[: drawn.eligible])
            scored: ScoreResult = yield ScoreRequest(
                history, messages, counts=counts, logprobs=tuple(candidate.logprob for candidate in eligible)
            )
            prior = prior_of(messages, counts=counts)
            selection = select(messages, scored.q_values, prior=prior, tau=settings.tau, rules=scored.rules)
            return selection.chosen


def _distinct(several: Sequence[Sequence[Candidate]], *, greedy: bool) -> _Drawn:
    first: dict[str, Candidate] = {}
    eligible = 0
    for candidates in several:
        for candidate in candidates:
            first.setdefault(reply_key(candidate.message), candidate)
        eligible = eligible or len(first)
    drawn = [candidate for candidates in several for candidate in candidates]
    counts = Counter(reply_key(candidate.message) for candidate in drawn)
    return _Drawn(
        candidates=list(first.values()),
        counts=[counts[key] for key in first],
        eligible=eligible,
        greedy=0 if greedy else None,
        completion_tokens=sum(candidate.completion_tokens for candidate in drawn),
    )


def expert_continuing(build: Callable[[], Expert]) -> Continuing:
    """Agents that play on as the environment's expert, for one episode.

    One expert follows the episode, and a copy of it plays on from each candidate. So the cost of a
    step does not grow with the episode.
    """
    following: list[Expert] = []  # at index t, the expert after its own reply in state t

    def expert_at(history: History) -> Expert:
        texts = [message.content for message in history if message.role != "system"]
        if not following:
            following.append(build())
            following[0].reply(texts[0])
        for t in range(len(following), len(texts) // 2 + 1):
            following.append(following[-1].copy())
            following[-1].follow(texts[2 * t - 1])
            following[-1].reply(texts[2 * t])
        return following[len(texts) // 2]

    def continuing(step: int, candidate: int, repetition: int) -> Agent:
        forks: list[Expert] = []

        def choose(history: History, now: int) -> Generator[ModelRequest, Any, AgentStep]:
            yield from ()
            if not forks:
                forks.append(expert_at(history[:-2]).copy())
                forks[0].follow(history[-2].content)
            return AgentStep(text_reply(forks[0].reply(history[-1].content)), completion_tokens=0)

        return choose

    return continuing
