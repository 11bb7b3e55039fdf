"""What a guided agent's choices were worth, in steps that a judge needs after each candidate.

A success rate says that guidance failed, not where. Here every candidate of every decision is
played to the end by a judge that knows the way (ALFWorld's expert), so that choices can be
compared with the best, the first and a random one, and Q with an order that it never saw.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from pydantic import BaseModel, ConfigDict

from qnet.decision.selection import distinct
from qnet.types import Candidate, History, Sampling, ScoreResult
from training.environment import Environment
from training.evaluation.methods import Play, q_guided
from training.rollouts.episode import Agent, AgentStep, first_reply, play_episode
from training.rollouts.rollout import ModelRequest, RolloutTask
from training.trajectory import Step


class DecisionRow(BaseModel):
    """One decision among different candidates.

    Attributes:
        after_idle: the action before it meant nothing to the environment.
        replies: the different candidates, in the order in which they were drawn.
        draws: how often each was drawn.
        q_values: what the Q model said of each.
        steps: how many the judge needed after each; `horizon` where it did not get there.
        idle: whether each meant nothing to the environment.
        chosen: which was taken.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    after_idle: bool
    replies: tuple[str, ...]
    draws: tuple[int, ...]
    q_values: tuple[float, ...]
    steps: tuple[int, ...]
    idle: tuple[bool, ...]
    chosen: int


class JudgedRow(BaseModel):
    """One guided episode and its decisions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_id: str
    kind: str
    reward: float
    decisions: tuple[DecisionRow, ...]


@dataclass(frozen=True, slots=True)
class _Decision:
    step: int
    replies: tuple[str, ...]
    draws: tuple[int, ...]
    q_values: tuple[float, ...]
    chosen: int


def judged_episode(
    make: Callable[[], Environment],
    play: Play,
    *,
    seed: int,
    task_id: str,
    kind: str,
    horizon: int,
) -> RolloutTask[JudgedRow]:
    """Play one guided episode, then each of its candidates to the end.

    The policy draws what is hot, the judge what is cold: see `PolicyWithRollouts`.

    Args:
        make: a fresh, single-use episode of the task; the same one every time.
        horizon: most actions of a judged episode, those before the candidate included.
    """
    made: list[_Decision] = []
    guided = play_episode(make, _noting(play, seed, task_id, made), max_steps=play.max_steps)
    episode = yield from guided
    decisions: list[DecisionRow] = []
    for decision in made:
        before = episode.steps[: decision.step]
        outcomes: list[tuple[int, bool]] = []
        for reply in decision.replies:
            outcomes.append((yield from _judge(make, before, reply, horizon)))
        decisions.append(
            DecisionRow(
                step=decision.step,
                after_idle=bool(before) and not before[-1].valid,
                replies=decision.replies,
                draws=decision.draws,
                q_values=decision.q_values,
                steps=tuple(steps for steps, _ in outcomes),
                idle=tuple(idle for _, idle in outcomes),
                chosen=decision.chosen,
            )
        )
    return JudgedRow(task_id=task_id, kind=kind, reward=episode.reward, decisions=tuple(decisions))


def _judge(
    make: Callable[[], Environment], before: Sequence[Step], reply: str, horizon: int
) -> RolloutTask[tuple[int, bool]]:
    """How many steps it takes after a reply, and whether the reply did nothing."""
    cold = first_reply(lambda _: Sampling(0.0))
    prefix = [*(step.action for step in before), reply]
    episode = yield from play_episode(make, cold, max_steps=horizon, prefix=prefix)
    steps = len(episode.steps) - len(prefix) if episode.reward > 0 else horizon
    return steps, not episode.steps[len(before)].valid


def _noting(play: Play, seed: int, task_id: str, made: list[_Decision]) -> Agent:
    """The guided agent, whose decisions among different candidates are noted in `made`."""
    guided = q_guided(play, seed, task_id)

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        asking, answers = guided(history, step), list[Any]()
        need = next(asking)
        while True:
            answers.append((yield need))
            try:
                need = asking.send(answers[-1])
            except StopIteration as end:
                choice: AgentStep = end.value
                break
        if len(answers) > 1:
            made.append(_decision(step, answers[0], answers[1], choice))
        return choice

    return choose


def _decision(
    step: int, candidates: Sequence[Candidate], scored: ScoreResult, choice: AgentStep
) -> _Decision:
    drawn = [candidate.message for candidate in candidates]
    different = distinct(drawn).messages
    replies = tuple(message.content for message in different)
    return _Decision(
        step=step,
        replies=replies,
        draws=tuple(drawn.count(message) for message in different),
        q_values=tuple(scored.q_values),
        chosen=replies.index(choice.reply),
    )


def judgement(rows: Sequence[JudgedRow]) -> dict[str, float]:
    """What all decisions come to.

    Returns:
        `regret` of the chosen, the first and a random candidate: steps more than the best one's,
        on average. `idle_after_idle`: the share of choices that do nothing right after an action
        that did nothing, and that of random ones. `pair_accuracy`: the share of pairs with
        different steps that Q puts in order (a tie counts half), and `idle_pair_accuracy` that
        of pairs of which one candidate does nothing. Figures without a case are left out.
    """
    decisions = [decision for row in rows for decision in row.decisions]
    stuck = [decision for decision in decisions if decision.after_idle]
    pairs = [
        (decision.idle[a] != decision.idle[b], _order(decision, a, b))
        for decision in decisions
        for a, b in combinations(range(len(decision.steps)), 2)
        if decision.steps[a] != decision.steps[b]
    ]
    figures = {
        "success_rate": _mean([row.reward > 0 for row in rows]),
        "regret": _mean([_regret(d, d.steps[d.chosen]) for d in decisions]),
        "regret_of_first": _mean([_regret(d, d.steps[0]) for d in decisions]),
        "regret_of_random": _mean([_regret(d, _random(d, d.steps)) for d in decisions]),
        "idle_after_idle": _mean([d.idle[d.chosen] for d in stuck]),
        "idle_after_idle_of_random": _mean([_random(d, d.idle) for d in stuck]),
        "pair_accuracy": _mean([right for _, right in pairs]),
        "idle_pair_accuracy": _mean([right for idle, right in pairs if idle]),
    }
    counts = {
        "episodes": len(rows),
        "decisions": len(decisions),
        "decisions_after_idle": len(stuck),
        "pairs": len(pairs),
    }
    return counts | {name: value for name, value in figures.items() if value is not None}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _regret(decision: DecisionRow, steps: float) -> float:
    return steps - min(decision.steps)


def _random(decision: DecisionRow, values: Sequence[float]) -> float:
    """The mean over the draws."""
    weighted = zip(decision.draws, values, strict=True)
    return sum(draws * value for draws, value in weighted) / sum(decision.draws)


def _order(decision: DecisionRow, a: int, b: int) -> float:
    """1 where the candidate with fewer steps has the higher Q, 0.5 for a tie."""
    better, worse = (a, b) if decision.steps[a] < decision.steps[b] else (b, a)
    q_better, q_worse = decision.q_values[better], decision.q_values[worse]
    return 0.5 if q_better == q_worse else float(q_better > q_worse)
