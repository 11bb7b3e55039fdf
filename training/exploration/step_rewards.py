"""Step rewards by Monte Carlo: the mean outcome of roll-outs from a state (IPR 3.2, RRO 2).

    r(s_t, a_t) = 1/N * sum of the outcomes of N roll-outs from e_1:t, for t < n
    r(s_n, a_n) = outcome of e_n                                        (IPR, equations 4 and 5)

The roll-outs of a state are played as one task (`play_together`). They ask for all next replies in
one request, so that a job's driver can batch them; draws after the same history become several
draws of one request, whose prompt is paid for once.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeVar

from pydantic import Field

from qguide.qnet.errors import HistoryTooLongError, QGuideError
from qguide.qnet.types import Candidate, SampleRequest, Sampling
from qguide.training.options import JobOptions
from qguide.training.rollouts.episode import Episode, first_reply, seeded
from qguide.training.rollouts.game import Game, new_steps
from qguide.training.rollouts.rollout import Answer, RolloutTask, SampleRequests, resume
from qguide.training.trajectory import Step

T = TypeVar("T")


def play_together(tasks: Sequence[RolloutTask[T]]) -> RolloutTask[list[T]]:
    """Run all tasks in step, and return their results in order; a rollout task.

    Args:
        tasks: tasks whose sample requests are of one candidate each. Where several ask for a
            candidate after the same history with sampling that differs only in its seed, the seed
            of the first one counts, and they get its draws in order.
    """
    results: dict[int, T] = {}
    answers = dict.fromkeys(range(len(tasks)), Answer())
    with ExitStack() as stack:
        for task in tasks:
            stack.enter_context(closing(task))
        while answers:
            asked: dict[int, SampleRequest] = {}
            for number, answer in answers.items():
                yield from _advance(tasks[number], number, answer, asked, results)
            answers = (yield from _draw(asked)) if asked else {}
    return [results[number] for number in range(len(tasks))]


def _advance(
    task: RolloutTask[T], number: int, answer: Answer, asked: dict[int, SampleRequest], results: dict[int, T]
) -> RolloutTask[None]:
    while True:
        try:
            request = resume(task, answer)
        except StopIteration as end:
            results[number] = end.value
            return
        if isinstance(request, SampleRequest):
            assert request.n == 1, "draws of one candidate are shared out one by one"
            asked[number] = request
            return
        try:
            answer = Answer((yield request))
        except QGuideError as error:
            answer = Answer(error=error)


def _draw(asked: dict[int, SampleRequest]) -> RolloutTask[dict[int, Answer]]:
    alike: dict[SampleRequest, list[int]] = defaultdict(list)
    for number, request in asked.items():
        unseeded = replace(request.sampling, seed=None)
        alike[replace(request, sampling=unseeded)].append(number)
    groups = list(alike.values())
    drawn = yield from _ask([replace(asked[group[0]], n=len(group)) for group in groups])
    return {
        number: answer
        for group, answer in zip(groups, drawn, strict=True)
        for number, answer in zip(group, _divided(answer, len(group)), strict=True)
    }


def _ask(requests: Sequence[SampleRequest]) -> RolloutTask[list[Answer]]:
    try:
        drawn: list[list[Candidate]] = yield SampleRequests(tuple(requests))
        return [Answer(candidates) for candidates in drawn]
    except HistoryTooLongError as error:
        if len(requests) == 1:
            return [Answer(error=error)]
    # One history is too long for the policy, the others may not be: ask for each alone.
    answers: list[Answer] = []
    for request in requests:
        answers += yield from _ask([request])
    return answers


def _divided(answer: Answer, count: int) -> list[Answer]:
    if answer.error is not None:
        return [answer] * count
    return [Answer([candidate]) for candidate in answer.value]


class StepRewards(JobOptions):
    """Options of the roll-outs that give a step its reward.

    Attributes:
        rollouts: number of roll-outs from each state (N in IPR, m in RRO).
        temperature: sampling temperature of the roll-outs.
        max_steps: actions after which an episode is cut off, those before the state included.
        max_tokens: maximum number of completion tokens in one reply.
    """

    rollouts: int = Field(default=5, ge=1)
    temperature: float = Field(default=1.0, gt=0)
    max_steps: int = Field(default=40, ge=1)
    max_tokens: int = Field(default=128, ge=1)

    def is_over(self, steps: Sequence[Step]) -> bool:
        """True if nothing is left to play after these steps: their outcome is known."""
        return bool(steps) and (steps[-1].ended or len(steps) >= self.max_steps)


@dataclass(frozen=True, slots=True)
class RolloutEnd:
    """Outcome of a roll-out, and its length.

    Attributes:
        steps: those of the roll-out alone; 0 if there was nothing left to play.
        terminated: False if a limit cut it off.
    """

    outcome_reward: float
    steps: int
    terminated: bool


@dataclass(frozen=True, slots=True)
class StepReward:
    """Reward of the last step of a prefix.

    Attributes:
        rollouts: a single one, of no steps, if the prefix is a whole episode.
    """

    rollouts: tuple[RolloutEnd, ...]
    completion_tokens: int = 0

    @property
    def mean(self) -> float:
        """The step reward."""
        return fmean(rollout.outcome_reward for rollout in self.rollouts)


def step_reward(
    game: Game, first_observation: str, steps: Sequence[Step], *, options: StepRewards, parts: Sequence[object] = ()
) -> RolloutTask[StepReward]:
    """Roll out a policy from the state after some steps; a rollout task.

    The draws have the role "rollout", so a scorer other than the agent may answer them.

    Args:
        steps: as they were played; none for the reward of the task itself.
        parts: of the draws' seeds, beside the game's.
    """
    if options.is_over(steps):
        return StepReward((RolloutEnd(steps[-1].reward, 0, steps[-1].terminated is not False),))
    sampling = Sampling(options.temperature, options.max_tokens)
    episodes: list[Episode] = yield from play_together(
        [
            game.play(
                first_reply(seeded(sampling, *game.seeds, *parts, number), role="rollout"),
                max_steps=options.max_steps,
                prefix=[step.message for step in steps],
            )
            for number in range(options.rollouts)
        ]
    )
    return StepReward(
        tuple(
            RolloutEnd(episode.reward, len(new_steps(episode, first_observation, steps)), episode.terminated)
            for episode in episodes
        ),
        sum(episode.completion_tokens for episode in episodes),
    )
