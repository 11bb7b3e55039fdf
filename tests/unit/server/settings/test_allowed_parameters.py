"""Parameters of the official SDKs pass; others do only where the operator says so."""

from typing import Any, get_type_hints

import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from qguide.qnet.errors import UnsupportedParameterError
from qguide.server.settings.allowed_parameters import chat_parameters, native_fields, without_effect

REFUSED_OF_CHATS = {
    "moderation",  # answers change by rules of the operator's account
    "web_search_options",  # a tool that the provider runs
}
LEFT_OUT_OF_MESSAGES = {
    "betas",  # a header of the SDK's
    "billing_policy",
    "diagnostics",
    "fallback_credit_token",
    "fallbacks",
    "inference_geo",
    "service_tier",  # by its value
    "speed",  # by its value
    "user_profile_id",
    "workspace_id",
}
REFUSED_OF_MESSAGES = {"compaction", "container", "mcp_servers", "thread"}
REFUSED_OF_RESPONSES = {
    "background",
    "context_management",
    "conversation",
    "moderation",
    "previous_response_id",
    "prompt",
}
LEFT_OUT_OF_RESPONSES = {"access_programs", "background_options", "service_tier", "stream_options"}
OURS = {"messages", "model", "n", "stream", "stream_options", "temperature", "max_tokens", "seed"}


def passed(**given: Any) -> dict[str, Any]:
    return chat_parameters(given, (), {})[0]


def test_every_parameter_of_openais_sdk_passes_or_is_accounted_for() -> None:
    for name in set(get_type_hints(CompletionCreateParamsNonStreaming)) - OURS:
        if name in REFUSED_OF_CHATS:
            with pytest.raises(UnsupportedParameterError, match=name):
                passed(**{name: "x"})
            continue
        left_out = name in ("metadata", "store", "service_tier")
        assert passed(**{name: "x"}) == ({} if left_out else {name: "x"})


@pytest.mark.parametrize(
    ("dialect", "sdk", "stopped"),
    [
        ("messages", MessageCreateParamsNonStreaming, REFUSED_OF_MESSAGES | LEFT_OUT_OF_MESSAGES),
        ("responses", ResponseCreateParamsNonStreaming, REFUSED_OF_RESPONSES | LEFT_OUT_OF_RESPONSES),
    ],
)
def test_every_field_of_a_native_sdk_passes_or_is_accounted_for(dialect: Any, sdk: Any, stopped: set[str]) -> None:
    fields = set(get_type_hints(sdk)) - {"stream"}
    taken, warnings = native_fields(dict.fromkeys(fields, "x"), dialect, ())
    assert fields - taken.keys() == stopped
    assert warnings == without_effect(stopped)


@pytest.mark.parametrize(
    "name",
    [
        "kv_transfer_params",
        "chat_template",
        "lora_path",
        "lora_request",
        "priority",
        "vllm_xargs",
        "mm_processor_kwargs",
        "documents",
        "file_id",
        "models",
        "provider",
        "x" * 1000,
    ],
)
def test_what_only_the_operator_may_set_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedParameterError) as refused:
        passed(**{name: "x"})
    assert refused.value.parameter == name[:80]
    assert f"{name[:80]!r} is not among the parameters" in str(refused.value)
    assert f"name {name[:80]!r} in QGUIDE_CALLER_FIELDS" in str(refused.value)
    assert passed(**{name: []}) == {}  # says nothing
    assert chat_parameters({name: "x"}, [name], {})[0] == {name: "x"}


def test_storage_and_dearer_tiers_are_left_out_with_a_warning() -> None:
    given = {"store": True, "metadata": {"a": "b"}, "service_tier": "priority", "top_p": 0.5}
    taken, warnings = chat_parameters(given, (), {})
    assert taken == {"top_p": 0.5}
    assert warnings == ("parameters without effect on this server: metadata, service_tier, store",)
    assert chat_parameters(given, ["store", "metadata", "service_tier"], {}) == (given, ())
    assert passed(service_tier="flex") == {"service_tier": "flex"}


def test_switches_of_a_template_pass_and_a_template_does_not() -> None:
    switch = {"chat_template_kwargs": {"enable_thinking": False}}
    assert passed(**switch) == switch
    for hostile in ({"chat_template": "{% for %}"}, {"enable_thinking": ["x"]}, "x"):
        with pytest.raises(UnsupportedParameterError, match=r"name 'chat_template_kwargs' in"):
            passed(chat_template_kwargs=hostile)
    any_of_them = {"chat_template_kwargs": {"x": [1]}}
    assert chat_parameters(any_of_them, ["chat_template_kwargs"], {})[0] == any_of_them


def test_an_error_has_the_callers_name_of_the_parameter() -> None:
    with pytest.raises(UnsupportedParameterError, match=r"'theirs' .*'theirs' in QGUIDE_CALLER_FIELDS"):
        chat_parameters({"ours": 1}, (), {"ours": "theirs"})
