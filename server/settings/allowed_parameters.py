"""Parameters of callers' requests that reach an upstream. Pure.

An upstream is asked with the operator's key, so a caller may set what changes the text of its own answer, and nothing
else: no files, templates or adapters of the upstream's machine, no queue, no tools that a server runs, no storage in
the operator's account and no dearer tier. The operator may name others (QGUIDE_CALLER_FIELDS).
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from qguide.qnet.errors import UnsupportedParameterError
from qguide.qnet.policies.upstream_dialects import DIALECTS, DialectName

_OPENAIS: Final = (
    *("audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs"),
    *("max_completion_tokens", "modalities", "parallel_tool_calls", "prediction"),
    *("presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    *("reasoning_effort", "response_format", "safety_identifier", "seed", "stop", "tool_choice"),
    *("tools", "top_logprobs", "top_p", "user", "verbosity"),
)
_OPEN_SERVERS: Final = (
    *("top_k", "top_a", "min_p", "typical_p", "repetition_penalty", "length_penalty"),
    *("min_tokens", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens"),
    *("spaces_between_special_tokens", "bad_words", "add_generation_prompt"),
    *("continue_final_message", "return_token_ids", "return_tokens_as_token_ids"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    *("regex", "json_schema", "ebnf", "grammar"),
    *("reasoning", "include_reasoning", "separate_reasoning", "thinking", "enable_thinking"),
    *("thinking_budget", "safe_prompt", "random_seed", "cache_salt"),
)
"""Sampling, structured outputs and thoughts at vLLM, SGLang, llama.cpp, OpenRouter and others. A salt only divides a
cache further: where upstreams get one, it is hashed with the key's own."""
_TEMPLATE: Final = "chat_template_kwargs"
_TEMPLATE_VARIABLES: Final = frozenset(
    (*("enable_thinking", "thinking", "thinking_budget", "preserve_thinking"), *("clear_thinking", "reasoning_effort"))
)
"""Switches that published chat templates read. vLLM once took a whole template in this place."""
_CHAT: Final = frozenset((*_OPENAIS, *_OPEN_SERVERS))
_LEFT_OUT: Final = frozenset(("metadata", "store"))
"""Storage of completions in the operator's account, and labels of what is stored. Agents' SDKs send them unasked, and
the answer is valid without."""
_PRICES: Final[Mapping[str, tuple[str, ...]]] = {
    "service_tier": ("auto", "default", "flex", "standard_only"),
    "speed": ("standard",),
}
"""Values that cost no more than the usual price; the others only the operator may choose."""


def chat_parameters(
    given: Mapping[str, Any], named: Collection[str], names: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The parameters of a chat completion that reach an upstream, and a warning of the others.

    Those whose absence changes nothing in the answer are left out with a warning, because clients send them unasked.
    Any other is refused: its caller counts on its effect.

    Args:
        named: by the operator, in addition.
        names: the caller's name of each parameter that its dialect calls otherwise.
    """
    passed: dict[str, Any] = {}
    left_out = []
    for name, value in given.items():
        if name in named or name in _CHAT or value in _PRICES.get(name, ()):
            passed[name] = value
        elif name == _TEMPLATE:
            passed[name] = _switches(value)
        elif name in _LEFT_OUT or name in _PRICES:
            left_out.append(names.get(name, name))
        elif value:
            raise _refused(names.get(name, name))
    return passed, without_effect(left_out)


def native_fields(
    given: Mapping[str, Any], dialect: DialectName, named: Collection[str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Fields of a request that goes on in its own dialect, and a warning of the others.

    Args:
        given: whose unknown fields were refused when it was read as a chat completion.
        named: by the operator, in addition.
    """
    taken = {*DIALECTS[dialect].fields, *_CHAT, _TEMPLATE, *named}
    passed = {name: value for name, value in given.items() if name in taken or value in _PRICES.get(name, ())}
    return passed, without_effect([name for name in given if name not in passed and given[name]])


def without_effect(names: Collection[str]) -> tuple[str, ...]:
    """The warning that these parameters do nothing; none if there are none."""
    said = f"parameters without effect on this server: {', '.join(sorted(names))}"
    return (said,) if names else ()


def _switches(variables: Any) -> dict[str, Any]:
    """Variables of the upstream's chat template, as far as they are known to be switches."""
    if not isinstance(variables, dict):
        raise _refused(_TEMPLATE)
    for name, value in variables.items():
        if name not in _TEMPLATE_VARIABLES or isinstance(value, dict | list):
            raise _refused(f"{_TEMPLATE}.{name[:40]}", _TEMPLATE)
    return variables


def _refused(name: str, field: str = "") -> UnsupportedParameterError:
    shown = name[:80]
    return UnsupportedParameterError(
        f"{shown!r} is not among the parameters that callers may send to an upstream; leave it out, or let the "
        f"operator name {(field or shown)!r} in QGUIDE_CALLER_FIELDS",
        parameter=shown,
    )
