"""Agents that draw under paraphrases of the task (Q*Agent-I-aug and Best-of-N-aug).

Paraphrases are drawn once per task, by `qguide paraphrase`, so that every method and seed sees the
same. They are for drawing alone: candidates are scored after the true history.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from qguide.qnet.decision.perturbation import TaskPlace, draw_texts, find_task
from qguide.qnet.errors import ConfigError, HistoryTooLongError
from qguide.qnet.records import Row
from qguide.qnet.types import Candidate, History, SampleRequest, TaskMarker
from qguide.training.data.runs import read_rows
from qguide.training.rollouts.episode import Agent, AgentStep, derived_seed
from qguide.training.rollouts.rollout import ModelRequest, SampleRequests, answered_by

Paraphrases = Mapping[str, tuple[str, ...]]
"""By a task's id, its description in other words."""


class ParaphraseRow(Row):
    """One task's description in other words.

    Attributes:
        texts: paraphrases, each another text than `task`.
    """

    version: Literal[1] = 1
    task_id: str
    kind: str = ""
    task: str = Field(min_length=1)
    texts: tuple[str, ...] = Field(min_length=1)
    source: str


def read_paraphrases(path: Path, task_ids: Iterable[str]) -> Paraphrases:
    """The paraphrases of the tasks of a run."""
    texts = {row.task_id: row.texts for row in read_rows(path, ParaphraseRow)}
    missing = [task_id for task_id in task_ids if task_id not in texts]
    if missing:
        raise ConfigError(
            f"{path} has no paraphrase of {len(missing)} tasks, such as {missing[0]}; run "
            "`qguide paraphrase` on the same tasks, or leave out the methods that end in -aug"
        )
    return texts


Redraw = Callable[[SampleRequest, TaskPlace, int], Sequence[SampleRequest]]
"""From (request, place of the task, candidates of this step so far) to the requests instead."""


def with_paraphrases(agent: Agent, texts: Sequence[str], markers: Sequence[TaskMarker]) -> Agent:
    """An agent whose candidate k > 0 of a step is drawn under text k - 1, as the server draws it."""

    def redraw(request: SampleRequest, place: TaskPlace, drawn: int) -> Sequence[SampleRequest]:
        task = place.text(request.history)
        counts = Counter(draw_texts(texts, task, first=drawn, n=request.n))
        return [_reworded(request, place, text, n, number=number) for number, (text, n) in enumerate(counts.items())]

    return _redrawing(agent, markers, redraw)


def under_paraphrase(agent: Agent, text: str, markers: Sequence[TaskMarker]) -> Agent:
    """An agent all of whose candidates are drawn under one paraphrase of its task."""

    def redraw(request: SampleRequest, place: TaskPlace, drawn: int) -> Sequence[SampleRequest]:
        return [_reworded(request, place, text, request.n)]

    return _redrawing(agent, markers, redraw)


def _reworded(request: SampleRequest, place: TaskPlace, text: str, n: int, *, number: int = 0) -> SampleRequest:
    """The request under another text, the `number`-th of its step."""
    history, sampling = request.history, request.sampling
    if text != place.text(history):
        history = place.reworded(history, text)
    if number:  # with the same seed, equal distributions would give equal draws
        seed = derived_seed(sampling.seed, number)
        sampling = replace(sampling, seed=seed, first_greedy=False)
    return replace(request, history=history, n=n, sampling=sampling)


def _redrawing(agent: Agent, markers: Sequence[TaskMarker], redraw: Redraw) -> Agent:

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        place = find_task(history, markers=markers)
        drawn = 0

        def redrawn(request: ModelRequest) -> Generator[ModelRequest, Any, Any]:
            nonlocal drawn
            if not isinstance(request, SampleRequest):
                return (yield request)
            candidates = yield from _draw(request, redraw(request, place, drawn))
            drawn += request.n
            return candidates

        return answered_by(agent(history, step), redrawn)

    return choose


def _draw(own: SampleRequest, others: Sequence[SampleRequest]) -> Generator[ModelRequest, Any, list[Candidate]]:
    """Candidates under other words, or under the task's own where those are too long."""
    try:
        several: list[list[Candidate]] = yield SampleRequests(tuple(others))
    except HistoryTooLongError:
        if all(other.history == own.history for other in others):
            raise
        candidates: list[Candidate] = yield own
        return candidates
    return [candidate for drawn in several for candidate in drawn]
