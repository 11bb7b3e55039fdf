"""Regret of a guided agent's choices, in steps that an expert needs after each candidate.

A success rate says that guidance failed, not where. Here every candidate of every decision is
played to the end by a policy that knows the way (the environment's expert), so that choices can
be compared with the best, the first and a random one, and Q with an order that it never saw.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from pydantic import BaseModel, ConfigDict

from qnet.decision.decide import Decision
from qnet.decision.selection import distinct
from qnet.types import Sampling
from training.environment import Environment, EnvironmentBundle, Task
from training.evaluation.methods import Play, q_guided
from training.rollouts.episode import first_reply, play_episode
from training.rollouts.rollout import RolloutTask
from training.trajectory import Step


class DecisionRow(BaseModel):
    """One decision among different candidates.

    Attributes:
        after_idle: the action before it meant nothing to the environment.
        replies: the different candidates, in the order in which they were drawn.
        draws: how often each was drawn.
        q_values: what the Q model said of each.
        steps: how many the rollout needed after each; `horizon` where it did not succeed.
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


class ChoiceRegretRow(BaseModel):
    """One guided episode and its decisions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_id: str
    kind: str
    reward: float
    success: bool
    decisions: tuple[DecisionRow, ...]


def play_choices(
    make: Callable[[], Environment],
    play: Play,
    *,
    seed: int,
    task: Task,
    environment: EnvironmentBundle[Any],
    horizon: int,
) -> RolloutTask[ChoiceRegretRow]:
    """Play one guided episode, then each of its candidates to the end.

    One policy draws the candidates, another plays the roll-outs: see `PolicyWithRollouts`.

    Args:
        make: a fresh, single-use episode of the task; the same one every time.
        play: how the guided agent plays.
        seed: the job's.
        task: names the task in the seeds of its draws.
        environment: that of the task.
        horizon: most actions of a rollout, those before the candidate included.
    """
    guided = q_guided(play, seed, task.id)
    episode = yield from play_episode(make, guided, max_steps=play.max_steps, chat=environment.chat)
    decisions: list[DecisionRow] = []
    for step, choice in enumerate(episode.choices):
        if choice.decision is not None and choice.decision.q_values is not None:
            before = episode.steps[:step]
            roll_out = partial(_roll_out, make, environment, horizon)
            decisions.append((yield from _play_on(before, choice.decision, roll_out)))
    return ChoiceRegretRow(
        task_id=task.id,
        kind=task.kind,
        reward=episode.reward,
        success=environment.is_success(episode.reward, episode.terminated),
        decisions=tuple(decisions),
    )


def _play_on(
    before: Sequence[Step],
    decision: Decision,
    roll_out: Callable[[Sequence[str]], RolloutTask[tuple[int, bool]]],
) -> RolloutTask[DecisionRow]:
    """Play each of a decision's different candidates to the end."""
    drawn = [candidate.message for candidate in decision.candidates]
    q_of = {candidate.message: q for candidate, q in decision.scored_candidates if q is not None}
    different = distinct(drawn).messages
    outcomes: list[tuple[int, bool]] = []
    for message in different:
        outcomes.append((yield from roll_out([*(step.action for step in before), message.content])))
    return DecisionRow(
        step=len(before),
        after_idle=bool(before) and not before[-1].valid,
        replies=tuple(message.content for message in different),
        draws=tuple(drawn.count(message) for message in different),
        q_values=tuple(q_of[message] for message in different),
        steps=tuple(steps for steps, _ in outcomes),
        idle=tuple(idle for _, idle in outcomes),
        chosen=different.index(decision.action),
    )


def _roll_out(
    make: Callable[[], Environment],
    environment: EnvironmentBundle[Any],
    horizon: int,
    prefix: Sequence[str],
) -> RolloutTask[tuple[int, bool]]:
    """Steps that success takes after a prefix; True beside them if its last reply did nothing."""
    greedy = first_reply(lambda _: Sampling(0.0), role="rollout")
    episode = yield from play_episode(
        make, greedy, max_steps=horizon, prefix=prefix, chat=environment.chat
    )
    success = environment.is_success(episode.reward, episode.terminated)
    steps = len(episode.steps) - len(prefix) if success else horizon
    return steps, not episode.steps[len(prefix) - 1].valid


def summarise_choices(rows: Sequence[ChoiceRegretRow]) -> dict[str, float]:
    """Figures over all decisions.

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
        "success_rate": _mean([row.success for row in rows]),
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
