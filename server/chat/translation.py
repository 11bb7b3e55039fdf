"""Translation between chat completions and guided steps. Pure."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel

from qguide.qnet.chat_messages import wire_message
from qguide.qnet.decision.decision import Decision, StepUsage
from qguide.qnet.errors import InvalidCandidatesError, MalformedHistoryError, UnsupportedParameterError
from qguide.qnet.turns import paced
from qguide.qnet.types import Candidate, History, Sampling, spent_on
from qguide.server.chat.schemas import ChatCompletionRequest, ChatTurn, GuidanceOptions
from qguide.server.guidance.readable_view import readable_view
from qguide.server.guidance.step_types import GuidedStepRequest, GuidedStepResult
from qguide.server.own_bodies.answers import verdict_fields
from qguide.server.own_bodies.history import check_count, check_readable, check_size
from qguide.server.own_bodies.schemas import text_in
from qguide.server.q_models.served import ServedPolicy
from qguide.server.settings.allowed_content import check_tools
from qguide.server.settings.allowed_parameters import chat_parameters
from qguide.server.settings.settings import Settings

_HARMLESS: Final = frozenset(
    (
        *("metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "reasoning", "reasoning_effort"),
        *("safety_identifier", "service_tier", "store", "user", "verbosity"),
    )
)
"""Parameters that a policy in this process may ignore, because the answer remains valid."""
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "frequency_penalty": (0,),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "stop": ([], ""),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "top_p": (1,),
}
"""Values by which a parameter has no effect."""


@dataclass(frozen=True, slots=True)
class Translated:
    """A request of another dialect as a chat completion, and what its answer depends on."""

    chat: ChatCompletionRequest
    thinks: bool  # the caller wants the upstream's thoughts
    warnings: tuple[str, ...]
    stop_sequences: Sequence[str] = ()  # texts that end a candidate, where the answer says which did
    toolsets: tuple[str, ...] = ()  # names of the toolsets whose tools may be called


def read_request(
    body: ChatCompletionRequest,
    options: GuidanceOptions,
    policy: ServedPolicy,
    settings: Settings,
    *,
    names: Mapping[str, str] = MappingProxyType({}),
) -> GuidedStepRequest:
    """Translate a chat completion request to the request for a guided step.

    Args:
        names: the caller's name of each parameter that its dialect calls otherwise, for errors.
    """
    n = body.n or 1
    num_candidates = options.num_candidates
    if num_candidates is None:
        num_candidates = max(n, min(settings.num_candidates, settings.max_candidates))
    if n > num_candidates:
        raise InvalidCandidatesError(
            f"n is {n} but qguide.num_candidates is {num_candidates}; draw at least n candidates"
        )
    history, flaw = to_chat_history(
        body.messages, most=settings.max_history_messages, most_bytes=settings.max_text_bytes
    )
    view = readable_view(history, body.parameters) if flaw else None
    unread = flaw is not None and view is None
    if flaw and (policy.upstream_model is None or (unread and options.fallback == "error")):
        raise flaw
    if policy.upstream_model is not None:
        settings.reach.check_history(history)
    sampling, warnings = _sampling(body, options, policy, settings, names)
    cached_as = body.parameters.get("prompt_cache_key")
    return GuidedStepRequest(
        policy=policy,
        history=history,
        unreadable=flaw,
        view=view,
        sampling=sampling,
        num_candidates=num_candidates,
        options=options,
        n=n,
        warnings=warnings,
        agent_session=cached_as if isinstance(cached_as, str) else "",
    )


def _sampling(
    body: ChatCompletionRequest,
    options: GuidanceOptions,
    policy: ServedPolicy,
    settings: Settings,
    names: Mapping[str, str],
) -> tuple[Sampling, tuple[str, ...]]:
    """Sampling options of the draw, and a warning of the parameters that have no effect."""
    for name in sorted(body.parameters.keys() & GuidanceOptions.model_fields.keys() - {*settings.caller_fields}):
        raise UnsupportedParameterError(
            f'{name!r} is an option of QGuide; send it within `qguide`, as {{"qguide": {{"{name}": …}}}}',
            parameter=name,
        )
    sampling = Sampling(
        temperature=body.temperature if options.temperature is None else options.temperature,
        max_tokens=body.max_tokens,
        seed=body.seed,
    )
    longest = body.max_completion_tokens
    if policy.upstream_model is None:
        _check_in_process(body.parameters, policy.name, names)
        seed = None if body.seed is None else body.seed % 2**63
        return replace(sampling, max_tokens=longest or body.max_tokens, seed=seed), ()
    check_tools(body.parameters)
    passed, warnings = chat_parameters(body.parameters, settings.caller_fields, names)
    if longest is not None:
        # Keep the name as the caller gave it: some upstreams accept only one of the two.
        passed["max_completion_tokens"] = longest
    return replace(sampling, parameters=passed), warnings


def _check_in_process(parameters: Mapping[str, object], policy: str, names: Mapping[str, str]) -> None:
    for name, value in parameters.items():
        if name not in _HARMLESS and value not in _NEUTRAL.get(name, ()):
            given = names.get(name, name)
            raise UnsupportedParameterError(
                f"the policy {policy!r} runs in this server and does not support {given!r}; leave the parameter out or "
                "choose a policy that is an upstream (QGUIDE_UPSTREAMS)",
                parameter=given,
            )


def completion_of(taken: GuidedStepResult, *, n: int, options: GuidanceOptions) -> dict[str, Any]:
    """The response body: OpenAI's completion, extended by `qguide`."""
    decision = taken.decision
    best = decision.ranked[:n]
    usage = decision.usage
    details = spent_on(decision.candidates).completion_details
    cache = {"cached_tokens": usage.cached_prompt_tokens}
    if usage.written_prompt_tokens:
        cache["cache_write_tokens"] = usage.written_prompt_tokens
    return {
        **decision.candidates[decision.chosen].answer_extra,
        **head_of(taken.policy),
        "choices": [choice_of(place, decision.candidates[index]) for place, index in enumerate(best)],
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": cache,
            **({"completion_tokens_details": dict(details)} if details else {}),
        },
        "qguide": guidance_of(taken, options, best),
    }


def head_of(policy: str) -> dict[str, Any]:
    """Head of a completion and of the chunks of one: a new id, the time and the policy."""
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": policy,
    }


def choice_of(place: int, candidate: Candidate) -> dict[str, Any]:
    """A candidate as a choice of a completion."""
    return {
        **candidate.extra,
        "index": place,
        "message": {"refusal": None} | _reply_of(candidate),
        "logprobs": candidate.logprobs,
        "finish_reason": finish_reason_of(candidate),
    }


def _reply_of(candidate: Candidate) -> dict[str, Any]:
    """The message; calls to which the upstream gave no id get one."""
    message = wire_message(candidate.message)
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [call | {"id": call["id"] or f"call_{uuid.uuid4().hex}"} for call in calls]
    return message


def finish_reason_of(candidate: Candidate) -> str:
    """OpenAI's reason why a candidate ended, or the upstream's own."""
    if candidate.finish_reason:
        return candidate.finish_reason
    if candidate.message.tool_calls:
        return "tool_calls"
    return "stop" if candidate.finished else "length"


def guidance_of(taken: GuidedStepResult, options: GuidanceOptions, best: list[int]) -> dict[str, Any]:
    """The `qguide` object of an answer; `best` has the indices of the returned candidates, the best first."""
    decision = taken.decision
    guidance: dict[str, Any] = {
        **{name: _plain(told) for name, told in taken.told.items()},
        "returned": best,
        "q_values": decision.q_values,
        "prior": decision.shares,
        "posterior": decision.posterior,
        "num_candidates": len(decision.candidates),
        "distinct_candidates": decision.distinct_candidates,
        "usage": _usage(decision.usage),
    }
    if taken.episode_id is not None:
        guidance["episode_id"] = taken.episode_id
    if options.return_candidates:
        guidance["candidates"] = _candidates(decision)
    return guidance


def _plain(told: Any) -> Any:
    if isinstance(told, list):
        return [_plain(one) for one in told]
    return told.model_dump() if isinstance(told, BaseModel) else told


def _usage(usage: StepUsage) -> dict[str, dict[str, Any]]:
    return {
        "paraphrase": {
            "prompt_tokens": usage.paraphrasing.prompt_tokens,
            "completion_tokens": usage.paraphrasing.completion_tokens,
        },
        "sample": {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_prompt_tokens,
            "completion_tokens": usage.completion_tokens,
        },
        "threshold": {
            "prompt_tokens": usage.below_threshold.prompt_tokens,
            "completion_tokens": usage.below_threshold.completion_tokens,
        },
        "score": {
            "scored_tokens": usage.scored_tokens,
            "cached_tokens": usage.cached_tokens,
            **({"judge": asdict(usage.upstream)} if usage.upstream else {}),
        },
    }


def _candidates(decision: Decision) -> list[dict[str, Any]]:
    return [
        {
            "message": _reply_of(candidate),
            "q_value": q,
            "prior": decision.shares[index],
            "posterior": decision.posterior[index] if decision.posterior else None,
            "finish_reason": finish_reason_of(candidate),
            **({"policy": candidate.policy} if candidate.policy else {}),
            **verdict_fields(decision.verdicts[index] if decision.verdicts else None),
        }
        for index, (candidate, q) in enumerate(decision.scored_candidates)
    ]


def to_chat_history(
    turns: Sequence[ChatTurn], *, most: int, most_bytes: int
) -> tuple[History, MalformedHistoryError | None]:
    """Convert a conversation to a history, and report why a Q model cannot read it, if so.

    An upstream may read what a Q model cannot, for example images. Chats need not begin with a task, so the order of
    roles is not checked.
    """
    check_count(turns, most)
    history = tuple(turn.to_message() for turn in paced(turns))
    check_size("messages", [message.text for message in history], most_bytes)
    try:
        for turn in paced(turns):
            text_in(turn.role, turn.content)
        check_readable(history)
    except MalformedHistoryError as flaw:
        return history, flaw
    return history, None
