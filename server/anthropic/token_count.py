"""Number of tokens of a prompt, by a tokenizer that this server has."""

import json
from collections.abc import Callable

from qguide.qnet.dialects.shapes import Json
from qguide.qnet.errors import InvalidRequestError
from qguide.qnet.types import CountsTokens, History, Message
from qguide.server.anthropic.answers import CountedTokens, TokenSource
from qguide.server.chat.schemas import chat_request_of
from qguide.server.chat.translation import to_chat_history
from qguide.server.guidance.readable_view import readable_view
from qguide.server.q_models.build import Models
from qguide.server.q_models.policies import ServedPolicy
from qguide.server.settings.settings import Settings


async def count_tokens(
    history: History, q_model: str | None, policy: ServedPolicy, models: Models, *, tools: bool
) -> CountedTokens:
    """Count by the tokenizer of the policy, or of the Q model if the policy is an upstream.

    An upstream's own tokenizer is not known here. The Q model's count says how much of the Q
    model's context the prompt takes, and estimates what it takes of the upstream's, images aside.
    `exact` is false then, and with tools, whose place in the prompt only the upstream knows.

    Args:
        history: the prompt, see `prompt_history`.
        q_model: the caller's; None is the default.
        tools: the prompt has tools.
    """
    if isinstance(policy.model, CountsTokens):
        tokens = await policy.model.count_tokens(history)
        source = TokenSource(counted_by="policy", name=policy.name, exact=not tools)
        return CountedTokens(input_tokens=tokens, qguide=source)
    q_model, counted = await models.q_models.count_tokens(q_model, history)
    if counted is None:
        raise InvalidRequestError(
            f"neither the policy {policy.name!r} nor the Q model {q_model!r} has a tokenizer in "
            "this server, so nothing can count; name another Q model as qguide.q_model, or read "
            "the usage of an answer"
        )
    source = TokenSource(counted_by="q_model", name=q_model, exact=False)
    return CountedTokens(input_tokens=counted, qguide=source)


def prompt_history(prompt: Callable[[], Json], policy: ServedPolicy, settings: Settings) -> History:
    """The prompt as a history; tools as their JSON, because chat templates write them so.

    Args:
        prompt: translates it to the fields of a chat completion's body.
    """
    fields = {name: value for name, value in prompt().items() if value is not None}
    chat = chat_request_of(fields)
    history, flaw = to_chat_history(
        chat.messages, most=settings.max_history_messages, most_bytes=settings.max_text_bytes
    )
    if flaw:
        view = readable_view(history) if policy.upstream_model else None
        if view is None:
            raise flaw
        history = view.history
    tools: list[Json] = fields.get("tools", [])
    if not tools:
        return history
    return (Message("system", "\n".join(json.dumps(tool) for tool in tools)), *history)
