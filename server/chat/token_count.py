"""Number of tokens of a prompt, by a tokenizer that this server or an upstream has."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Final, Literal, Protocol, Self, runtime_checkable

from fastapi import Request
from pydantic import BaseModel, Field

from qguide.qnet.dialects.shapes import Json
from qguide.qnet.errors import InvalidRequestError, UpstreamError
from qguide.qnet.types import History, Message
from qguide.server.chat.schemas import GuidanceOptions, chat_request_of
from qguide.server.chat.translation import read_request, to_chat_history
from qguide.server.guidance.readable_view import readable_view
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.http.bodies import translate_body
from qguide.server.q_models.registry import Models
from qguide.server.q_models.served import ServedPolicy
from qguide.server.settings.settings import Settings

Counter = Literal["policy", "upstream", "q_model"]
_COUNTING_S: Final = 5.0  # time for an upstream to count; agents ask before each turn


@runtime_checkable
class CountsTokens(Protocol):
    """A policy whose tokenizer is in this process."""

    async def count_tokens(self, history: History) -> int:
        """Tokens of a history as the policy reads it, however many they are."""


class TokenSource(BaseModel):
    """The model, or the upstream of the policy, that counted."""

    counted_by: Counter
    name: str
    exact: bool = Field(description="true if it is the policy that draws the candidates")


class CountedTokens(BaseModel):
    """Number of tokens of a prompt."""

    input_tokens: int
    qguide: TokenSource

    @classmethod
    def of(cls, tokens: int, counted_by: Counter, name: str, *, exact: bool) -> Self:
        """The number, and who counted."""
        return cls(input_tokens=tokens, qguide=TokenSource(counted_by=counted_by, name=name, exact=exact))


async def count_tokens(
    request: Request,
    prompt: Callable[[], Json],
    as_it_came: Callable[..., GuidedStepRequest],
    *,
    model: str | None,
    q_model: str | None,
) -> CountedTokens:
    """Count by the tokenizer of the policy, by its upstream, or else by that of the Q model.

    The Q model's count says how much of the Q model's context the prompt takes, and estimates what it takes of the
    upstream's, images aside: where the upstream has no such route, fails, or takes more than five seconds. `exact` is
    false then, and with tools for a policy in this process.

    Args:
        prompt: translates the request to the fields of a chat completion's body.
        as_it_came: adds the caller's own request to a step, for an upstream of its dialect.
    """
    models: Models = request.app.state.models
    policy = models.find_policy(model)
    read = partial(_read, prompt, policy, request.app.state.settings, as_it_came)
    history, has_tools, step = await translate_body(request, read)
    failure: Exception | None = None
    if isinstance(policy.model, CountsTokens):
        tokens = await policy.model.count_tokens(history)
        return CountedTokens.of(tokens, "policy", policy.name, exact=not has_tools)
    if step and policy.upstream:
        told = None
        try:
            async with asyncio.timeout(_COUNTING_S):
                told = await policy.upstream.count_prompt(step.history, step.sampling)
        except (UpstreamError, TimeoutError) as error:  # an estimate is better than no number
            failure = error
        if told is not None:
            return CountedTokens.of(told, "upstream", policy.name, exact=True)
    with models.q_models.hold(q_model) as held:
        counted = await held.model.count_tokens(history)
    if counted is None and isinstance(failure, UpstreamError):
        raise failure
    if counted is None:
        raise InvalidRequestError(
            f"neither the policy {policy.name!r} nor the Q model {held.id!r} has a tokenizer in this server, so "
            "nothing can count; name another Q model as qguide.q_model, or read the usage of an answer"
        )
    return CountedTokens.of(counted, "q_model", held.id, exact=False)


def _read(
    prompt: Callable[[], Json], policy: ServedPolicy, settings: Settings, as_it_came: Callable[..., GuidedStepRequest]
) -> tuple[History, bool, GuidedStepRequest | None]:
    """The history with the tools as JSON, as chat templates write them; if there are some; an upstream's step."""
    fields = {name: value for name, value in prompt().items() if value is not None}
    chat = chat_request_of(fields)
    history, flaw = to_chat_history(
        chat.messages, most=settings.max_history_messages, most_bytes=settings.max_text_bytes
    )
    step = None
    if policy.upstream_model is not None:
        step = as_it_came(read_request(chat, GuidanceOptions(), policy, settings), settings=settings)
    if flaw:
        view = readable_view(history) if policy.upstream_model else None
        if view is None:
            raise flaw
        history = view.history
    tools: list[Json] = fields.get("tools", [])
    if tools:
        described = "\n".join(json.dumps(tool) for tool in tools)
        history = (Message("system", described), *history)
    return history, bool(tools), step
