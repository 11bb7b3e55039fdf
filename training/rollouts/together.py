"""Several rollout tasks as one: their draws go out together, and equal states are read once.

Roll-outs from one state begin with the same history. As one task they ask for all next replies in
one request, so that a job's driver can batch them; draws after the same history become several
draws of one request, whose prompt is paid for once.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TypeVar

from qguide.qnet.errors import HistoryTooLongError, QGuideError
from qguide.qnet.types import Candidate, SampleRequest
from qguide.training.rollouts.rollout import Answer, RolloutTask, SampleRequests, resume

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
    task: RolloutTask[T],
    number: int,
    answer: Answer,
    asked: dict[int, SampleRequest],
    results: dict[int, T],
) -> RolloutTask[None]:
    """Run a task until it asks for a candidate or ends."""
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
    """Candidates of all requests, drawn in one go."""
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
    """One answer per request."""
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
