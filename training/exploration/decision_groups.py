"""Decision groups of one episode: draw at every step, go on with one, then value each candidate.

An agent chooses among its own policy's candidates in states that the policy has reached itself. A
Q model that tells an expert's mistakes apart need not tell these candidates apart. So the policy
plays the episode (or the guided agent does: policy iteration), and another agent plays every
distinct candidate to the end in a replayed environment.
"""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qnet.decision.selection import select
from qnet.errors import EnvironmentFailureError, HistoryTooLongError
from qnet.types import (
    Candidate,
    History,
    SampleRequest,
    Sampling,
    ScoreRequest,
    ScoreResult,
)
from training.data.decision_groups import CandidateRow, ContinuationRow, DecisionRow
from training.environment import Environment, Expert
from training.rollouts.episode import Agent, AgentStep, Episode, derived_seed, play_episode
from training.rollouts.rollout import ModelRequest, RolloutTask, SampleRequests
from training.trajectory import REACT, ChatFormat, Step, action_key

GoOn = Literal["random", "first", "guided"]


class Draws(BaseModel):
    """Some of the candidates of every state.

    Attributes:
        n: how many.
        temperature: of all, but for the first one of a `greedy` draw.
        greedy: the first is the greedy reply.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n: int = Field(ge=1)
    temperature: float = Field(gt=0)
    greedy: bool = False


class Decisions(BaseModel):
    """Options of an episode and of the draws at each of its steps.

    Attributes:
        draws: the candidates of a state. The episode goes on with one of the first entry, which
            should be drawn as the served agent draws; the other entries only add siblings.
        go_on: the candidate that the episode goes on with: a random one of the distinct actions,
            the first drawn, or the one of highest Q.
        valued_share: share of the states whose candidates are valued, drawn at random. Of the
            others the taken candidate alone is kept. Roll-outs of a policy cost far more than
            draws, and states of one episode tell much the same.
        max_steps: actions after which the episode is cut off.
        horizon: most steps of a continuation, the candidate included.
        max_tokens: most completion tokens of one reply.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    draws: tuple[Draws, ...] = Field(
        default=(Draws(n=5, temperature=0.7, greedy=True), Draws(n=5, temperature=1.0)),
        min_length=1,
    )
    go_on: GoOn = "random"
    valued_share: float = Field(default=1.0, gt=0, le=1)
    max_steps: int = Field(default=40, ge=1)
    horizon: int = Field(default=50, ge=1)
    max_tokens: int = Field(default=128, ge=1)

    def sample_requests(self, history: History, *seed_parts: object) -> SampleRequests:
        """All draws of one state, each with a seed of its own.

        The first entry's seed is that of `training.evaluation.methods`: with equal histories, an
        evaluation with the same seed chooses among the same candidates.
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
    decisions: tuple[DecisionRow, ...]
    completion_tokens: int


@dataclass(slots=True)
class _Drawn:
    """One state's distinct candidates, the first drawn of each action.

    Attributes:
        eligible: number of the first candidates with which the episode may go on.
    """

    candidates: list[Candidate]
    counts: list[int]
    eligible: int
    greedy: int | None
    completion_tokens: int
    chosen: int = 0


Continuing = Callable[[int, int, int], Agent]
"""(step, candidate, repetition) to the agent that plays on from there."""


def play_decisions(
    make: Callable[[], Environment],
    *,
    task_id: str,
    settings: Decisions,
    seed: int,
    continuing: Continuing,
    repetitions: int = 1,
    chat: ChatFormat = REACT,
) -> RolloutTask[PlayedDecisions]:
    """Play one episode, then each of its candidates to the end; a rollout task.

    Args:
        make: a fresh, single-use episode of the task; the same one every time.
        task_id: names the task in the seeds of its draws.
        settings: of the episode and its draws.
        seed: the job's.
        continuing: makes the agents that play on.
        repetitions: continuations of each candidate.
        chat: the environment's.

    Raises:
        EnvironmentFailureError: an episode replayed differently.
        HistoryTooLongError: the task leaves no room for a first reply.
    """
    made: list[_Drawn] = []
    agent = _noting(settings, seed, task_id, made)
    episode: Episode = yield from play_episode(make, agent, max_steps=settings.max_steps, chat=chat)
    if not made:
        raise HistoryTooLongError(f"{task_id} leaves no room for a reply; use a longer context")
    decisions: list[DecisionRow] = []
    for step, drawn in enumerate(made):
        if not _is_valued(drawn, settings, (seed, task_id, step)):
            decisions.append(_taken_alone(drawn, step, episode))
            continue
        rows: list[CandidateRow] = []
        for index, candidate in enumerate(drawn.candidates):
            agents = [continuing(step, index, i) for i in range(repetitions)]
            reply = candidate.message.content
            episodes = yield from _play_on(make, episode, step, reply, agents, settings.horizon)
            rows.append(_candidate_row(candidate, drawn.counts[index], step, episodes))
        decisions.append(DecisionRow(candidates=rows, chosen=drawn.chosen, greedy=drawn.greedy))
        _require_same(rows[drawn.chosen].to_step(), episode.steps[step], step)
    tokens = sum(drawn.completion_tokens for drawn in made)
    return PlayedDecisions(episode.first_observation, tuple(decisions), tokens)


def _is_valued(drawn: _Drawn, settings: Decisions, seed_parts: tuple[object, ...]) -> bool:
    """True for a state with a choice, if it is in the share that is valued."""
    if len(drawn.candidates) == 1:
        return False
    return Random(derived_seed(*seed_parts, "valued")).random() < settings.valued_share


def _taken_alone(drawn: _Drawn, step: int, episode: Episode) -> DecisionRow:
    """A state whose candidates are not valued; the episode itself goes on from the taken one."""
    row = _candidate_row(
        drawn.candidates[drawn.chosen], drawn.counts[drawn.chosen], step, [episode]
    )
    greedy = 0 if drawn.greedy == drawn.chosen else None
    return DecisionRow(candidates=[row], chosen=0, greedy=greedy)


def _play_on(
    make: Callable[[], Environment],
    episode: Episode,
    step: int,
    reply: str,
    agents: Sequence[Agent],
    horizon: int,
) -> RolloutTask[list[Episode]]:
    """Continuations of one candidate; one is enough where the candidate ends the episode."""
    prefix = [*(s.action for s in episode.steps[:step]), reply]
    episodes: list[Episode] = []
    for agent in agents:
        played = yield from play_episode(
            make, agent, max_steps=step + horizon, prefix=prefix, chat=episode.chat
        )
        episodes.append(played)
        if played.terminated and len(played.steps) == len(prefix):
            break
    return episodes


def _candidate_row(
    candidate: Candidate, count: int, step: int, episodes: Sequence[Episode]
) -> CandidateRow:
    did = episodes[0].steps[step]
    return CandidateRow(
        action=did.action,
        count=count,
        logprob=candidate.logprob,
        observation=did.observation,
        reward=did.reward,
        terminated=did.terminated,
        valid=did.valid,
        continuations=tuple(
            ContinuationRow(
                outcome_reward=episode.reward,
                steps=len(episode.steps) - step,
                terminated=episode.terminated,
            )
            for episode in episodes
        ),
    )


def _noting(settings: Decisions, seed: int, task_id: str, made: list[_Drawn]) -> Agent:
    """The agent of the episode, whose decisions are noted in `made`."""

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        several: list[list[Candidate]] = yield settings.sample_requests(
            history, seed, task_id, step
        )
        drawn = _distinct(several, greedy=settings.draws[0].greedy)
        if drawn.eligible > 1:
            drawn.chosen = yield from _chosen(settings, history, drawn, (seed, task_id, step))
        made.append(drawn)
        reply = drawn.candidates[drawn.chosen].message.content
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
            messages = tuple(c.message for c in drawn.candidates[: drawn.eligible])
            scored: ScoreResult = yield ScoreRequest(history, messages)
            return select(messages, scored.q_values).chosen


def _distinct(several: Sequence[Sequence[Candidate]], *, greedy: bool) -> _Drawn:
    """Candidates that act alike once, in the order in which they were drawn."""
    first: dict[str, Candidate] = {}
    eligible = 0
    for candidates in several:
        for candidate in candidates:
            first.setdefault(action_key(candidate.message.content), candidate)
        eligible = eligible or len(first)
    drawn = [candidate for candidates in several for candidate in candidates]
    counts = Counter(action_key(candidate.message.content) for candidate in drawn)
    return _Drawn(
        candidates=list(first.values()),
        counts=[counts[key] for key in first],
        eligible=eligible,
        greedy=0 if greedy else None,
        completion_tokens=sum(candidate.completion_tokens for candidate in drawn),
    )


def expert_continuing(build: Callable[[], Expert]) -> Continuing:
    """The environment's expert, for one episode; it asks no model.

    One expert follows the episode, and a copy of it goes on from each candidate: a step costs
    the same however long the episode is.

    Args:
        build: makes an expert that knows nothing yet.
    """
    following: list[Expert] = []  # at index t: after its own reply in state t

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
            return AgentStep(forks[0].reply(history[-1].content), completion_tokens=0)

        return choose

    return continuing


def _require_same(now: Step, before: Step, step: int) -> None:
    if now != before:
        raise EnvironmentFailureError(
            f"a replayed episode differs at step {step + 1}: {now} instead of {before}; decision "
            "groups need a deterministic environment"
        )
