"""Additions to every history that a policy gets: the environment's tools and few-shot turns.

Agents and Q models see the history alone, and so do rows; the rule `validity` reads the tools, too.
The driver of a job adds the rest to each draw, so that no agent has to know of it.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Any, TypeVar

from qguide.qnet.types import SampleRequest, ScoreRequest
from qguide.training.rollouts.rollout import (
    RolloutRequest,
    RolloutTask,
    SampleRequests,
    answered_by,
)
from qguide.training.trajectory import ChatFormat

T = TypeVar("T")


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
