"""Rollout tasks: generators that play, and the requests that they make of models and environments.

A rollout task is a generator that yields requests and receives the answers:

    candidates = yield SampleRequest(history, n, sampling)      list[Candidate]
    several = yield SampleRequests((request, request))          list[list[Candidate]]
    result = yield ScoreRequest(history, messages)              ScoreResult
    value = yield EnvironmentCall(lambda: environment.step(a))  what the function returned
    spent = yield TimingsRequest()                              Timings

The `driver` runs them, many at the same time. The error of a request is raised inside the task that
made it, where it can be caught.

Agents and Q models see the history alone, and so do rows. `prompted` adds the environment's tools
and few-shot turns to every draw, so that no agent has to know of them; the rule `validity` reads
the tools, too.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, TypeVar

from qguide.qnet.errors import QGuideError
from qguide.qnet.types import History, SampleRequest, ScoreRequest
from qguide.training.trajectory import ChatFormat, Step, step_messages

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EnvironmentCall:
    """A call of an environment; it may run in a thread, because some engines are slow."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class TimingsRequest:
    """Request for the task's own cost so far, answered by a copy of its `TaskTimings`."""


@dataclass(frozen=True, slots=True)
class SampleRequests:
    """Several draws in one request, for example at two temperatures after one history.

    They share a batch, and a policy with a prefix cache reads a common history once.
    """

    requests: tuple[SampleRequest, ...]


ModelRequest = SampleRequest | SampleRequests | ScoreRequest
RolloutRequest = ModelRequest | EnvironmentCall | TimingsRequest
RolloutTask = Generator[RolloutRequest, Any, T]
Y = TypeVar("Y", bound=RolloutRequest)


@dataclass(slots=True)
class TaskTimings:
    """Seconds spent on a rollout task.

    A batch's time is divided among its requests by tokens: for sampling, the tokens generated; for
    scoring, the tokens that went through the trunk. With a hosted policy it is the time for which
    the task waited. Environment calls are timed one by one; in threads they overlap, so their sum
    may exceed the elapsed time.
    """

    policy_s: float = 0.0
    scorer_s: float = 0.0
    environment_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Sum of the three."""
        return self.policy_s + self.scorer_s + self.environment_s

    def since(self, before: "TaskTimings") -> "TaskTimings":
        """Time spent since earlier timings."""
        return TaskTimings(
            self.policy_s - before.policy_s, self.scorer_s - before.scorer_s, self.environment_s - before.environment_s
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: a value, or the error to raise in the task."""

    value: Any = None
    error: QGuideError | None = None


def resume(task: Generator[Y, Any, T], answer: Answer) -> Y:
    """Hand a task the answer to its last request and run it to the next one."""
    return task.send(answer.value) if answer.error is None else task.throw(answer.error)


def answered_by(task: Generator[Y, Any, T], answer_to: Callable[[Y], Generator[Y, Any, Any]]) -> Generator[Y, Any, T]:
    """The same task, each of whose requests is answered by a generator of other requests.

    Args:
        answer_to: yields what is asked in place of a request, and returns its answer; a QGuideError
            that it raises is raised in the task, which may know what to do without.
    """
    answer = Answer()
    with closing(task):
        while True:
            try:
                request = resume(task, answer)
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                answer = Answer((yield from answer_to(request)))
            except QGuideError as error:
                answer = Answer(error=error)


class RunBudget:
    """Time and requests to the policies after which a job plays no further episode.

    Attributes:
        wanted: number of states whose candidates differ in outcome that is enough; None is no limit.
    """

    def __init__(self, minutes: float | None = None, calls: int | None = None) -> None:
        """Start the clock; None sets no limit."""
        self._minutes, self._calls = minutes, calls
        self._started, self._asked = perf_counter(), 0
        self.wanted: int | None = None
        self.found = 0

    @property
    def reason(self) -> str:
        """The limit that is reached; "" for none."""
        if self.wanted is not None and self.found >= self.wanted:
            return f"differing = {self.wanted:,}"
        if self._calls is not None and self._asked >= self._calls:
            return f"calls = {self._calls:,}"
        if self._minutes is not None and perf_counter() - self._started >= 60 * self._minutes:
            return f"minutes = {self._minutes:g}"
        return ""

    def counting(self, task: RolloutTask[T]) -> RolloutTask[T]:
        """The same task, whose requests to the policies are counted."""

        def counted(request: RolloutRequest) -> Generator[RolloutRequest, Any, Any]:
            if isinstance(request, SampleRequest | SampleRequests):
                self._asked += len(draws_of(request))
            return (yield request)

        return answered_by(task, counted)


def call(request: EnvironmentCall) -> tuple[Answer, float]:
    """The answer of an environment, and the seconds that it took."""
    start = perf_counter()
    try:
        answer = Answer(request.function())
    except QGuideError as error:
        answer = Answer(error=error)
    return answer, perf_counter() - start


R = TypeVar("R", SampleRequest, ScoreRequest)


def answer_all(requests: Sequence[R], model: Callable[[Sequence[R]], Sequence[Any]]) -> list[Answer]:
    """One answer per request, from one batched call."""
    # One bad request fails the whole batch, so ask again one by one: then only its task fails.
    try:
        # A model that leaves out a request would keep its task waiting for ever.
        return [Answer(value) for _, value in zip(requests, model(requests), strict=True)]
    except QGuideError as error:
        if len(requests) == 1:
            return [Answer(error=error)]
    return [answer for request in requests for answer in answer_all([request], model)]


def draws_of(request: SampleRequest | SampleRequests) -> tuple[SampleRequest, ...]:
    """The draws of a request."""
    return request.requests if isinstance(request, SampleRequests) else (request,)


def gathered(request: ModelRequest, answers: Sequence[Answer]) -> Answer:
    """One answer to several draws: their candidates, or the first error."""
    if not isinstance(request, SampleRequests):
        return answers[0]
    error = next((answer.error for answer in answers if answer.error is not None), None)
    return Answer(None if error else [answer.value for answer in answers], error)


def value_request(history: History, steps: Sequence[Step], *, observes: bool) -> ScoreRequest:
    """The request for the Q of actions that were tried in one state."""
    answers = tuple(step_messages(step)[1:] for step in steps)
    replies = tuple(step.message for step in steps)
    return ScoreRequest(history, replies, observations=answers if observes else ())


def prompted(task: RolloutTask[T], chat: ChatFormat) -> RolloutTask[T]:
    """The same task, whose draws have the tools and the few-shot turns of a chat format."""
    if not (chat.tools or chat.examples):
        return task

    def with_chat(request: RolloutRequest) -> Generator[RolloutRequest, Any, Any]:
        return (yield _with_chat(request, chat))

    return answered_by(task, with_chat)


def _with_chat(request: RolloutRequest, chat: ChatFormat) -> RolloutRequest:
    match request:
        case SampleRequest():
            return prompt_draw(request, chat)
        case SampleRequests(requests):
            return SampleRequests(tuple(prompt_draw(each, chat) for each in requests))
        case ScoreRequest():
            return replace(request, tools=chat.tools)
        case _:
            return request


def prompt_draw(request: SampleRequest, chat: ChatFormat) -> SampleRequest:
    """A draw with the tools, and the few-shot turns behind the system message.

    A reflection gets neither: it is about the task, and no action.
    """
    if request.role == "reflect":
        return request
    history, sampling = request.history, request.sampling
    first = next((i for i, message in enumerate(history) if message.role != "system"), 0)
    history = (*history[:first], *chat.examples, *history[first:])
    if chat.tools:
        tools = {"tools": [dict(tool) for tool in chat.tools]}
        sampling = replace(sampling, parameters={**tools, **sampling.parameters})
    return replace(request, history=history, sampling=sampling)
