"""Upstreams by one word on the command line."""

import pytest

from qguide.qnet.errors import ConfigError
from qguide.server.settings.remote_models import Upstream, named_upstream


def test_a_model_of_openais_needs_only_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    name, fields = named_upstream("openai:gpt-4.1-mini")
    upstream = Upstream.model_validate(fields)
    assert (name, upstream.model) == ("gpt-4.1-mini", "gpt-4.1-mini")
    assert str(upstream.url) == "https://api.openai.com/v1"
    assert upstream.api_key is not None
    assert upstream.api_key.get_secret_value() == "secret"


def test_a_model_of_anthropics_is_asked_in_its_own_dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    name, fields = named_upstream("anthropic:claude-haiku-4-5")
    upstream = Upstream.model_validate(fields)
    assert (name, upstream.dialect) == ("claude-haiku-4-5", "messages")
    assert str(upstream.url) == "https://api.anthropic.com/v1"


def test_an_address_gets_no_key_of_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    name, fields = named_upstream("http://127.0.0.1:8001/v1#Qwen/Qwen3-8B")
    assert name == "Qwen/Qwen3-8B"
    assert Upstream.model_validate(fields).api_key is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("openai:gpt-4.1-mini", r"'openai:gpt-4\.1-mini' .*OPENAI_API_KEY"),
        ("anthropic:claude-haiku-4-5", "'anthropic:claude-haiku-4-5' .*ANTHROPIC_API_KEY"),
        ("gpt-4.1-mini", r"'gpt-4\.1-mini' .*openai:MODEL.*QGUIDE_UPSTREAMS"),
        ("http://127.0.0.1:8001/v1", r"'http://127\.0\.0\.1/…' .*openai:MODEL.*QGUIDE_UPSTREAMS"),
        ("http://127.0.0.1:8001/v1#a:b", "'a:b' .* 1 to 64 .*QGUIDE_UPSTREAMS"),
    ],
)
def test_what_names_no_upstream_is_refused(text: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=reason):
        named_upstream(text)


@pytest.mark.parametrize("text", ["http://me:hush@host/v1", "http://me:hush@host/v1#a:b", "http://me:h#hush@host/v1#m"])
def test_a_refusal_does_not_print_a_password(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        named_upstream(text)
    assert "hush" not in str(error.value)
