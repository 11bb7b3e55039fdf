"""Settings of the models that other servers run: upstreams, trunks on vLLM, classifiers."""

import os
import re
from typing import Any, Final

from pydantic import BaseModel, Field, HttpUrl

from qguide.qnet.errors import ConfigError, without_secrets
from qguide.qnet.policies.upstream_dialects import DIALECTS
from qguide.qnet.policies.upstream_settings import DEFAULT_LIMITS, ApiKey, UpstreamSettings


class VllmTrunk(BaseModel, frozen=True, extra="forbid"):
    """A vLLM server that runs a Q model's trunk in place of this process.

    Attributes:
        url: root URL of the vLLM server.
        api_key: the key that vLLM was started with, if any.
        max_tokens: maximum sequence length in tokens; None uses the trunk's own maximum.
    """

    url: HttpUrl
    api_key: ApiKey | None = None
    max_tokens: int | None = Field(default=None, ge=1)


class Classifier(VllmTrunk):
    """A server with vLLM's /classify that runs a sequence classifier as a Q model.

    Attributes:
        url: root URL of the server.
        api_key: the key that the server was started with, if any.
        max_tokens: maximum conversation length in tokens; None uses the classifier's own maximum.
        model: the classifier's name at the server.
    """

    model: str = Field(min_length=1)


class Upstream(UpstreamSettings):
    """An OpenAI-compatible server whose model is served as a policy.

    Attributes:
        api_key: the key to send, if the upstream needs one.
        context: tokens that its model takes with the reply, for the lists of models, by which agents shorten their
            histories in time.
        cache_salt: send vLLM's `cache_salt`, which keeps the callers' prefix caches apart; most other servers refuse
            the parameter.
        stream: ask for answers as streams, so that only silence is a timeout; false asks for whole answers, which an
            upstream that refuses streams gets by itself.
        timeout_s: longest time without a byte from the upstream; the default is the server's `idle_timeout_s`, or nine
            tenths of its `timeout_s` if that is shorter.
        max_connections: maximum number of open connections; `parallel` needs one per candidate.
        retries: retries of requests that are safe to repeat (no connection, 429, 502, 503, 504).
        breaker_failures: consecutive failures of one API key's requests that open the circuit breaker for this key; it
            is open for all while the health check fails too.
        breaker_open_s: time for which an open circuit breaker sends nothing.
    """

    api_key: ApiKey | None = None
    context: int | None = Field(default=None, ge=1)
    cache_salt: bool = False
    stream: bool = True
    timeout_s: float | None = Field(default=None, gt=0)
    max_connections: int = Field(default=DEFAULT_LIMITS.max_connections, ge=1)
    retries: int = Field(default=DEFAULT_LIMITS.retries, ge=0)
    breaker_failures: int = Field(default=DEFAULT_LIMITS.breaker_failures, ge=1)
    breaker_open_s: float = Field(default=DEFAULT_LIMITS.breaker_open_s, gt=0)


_PROVIDERS: Final = {one.provider.name: (one.provider, one.name) for one in DIALECTS.values() if one.provider}
_ADDRESS: Final = re.compile(r"(https?://[^#\s]+)#(\S+)")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")


def named_upstream(text: str) -> tuple[str, dict[str, Any]]:
    """Name and settings of an upstream; its name is that of its model."""
    shown = without_secrets(text)
    provider, _, model = text.partition(":")
    if provider in _PROVIDERS:
        known, dialect = _PROVIDERS[provider]
        key = os.environ.get(known.key_variable, "")
        if not key:
            raise ConfigError(f"the upstream {shown!r} needs a key, but {known.key_variable} is not set; export it")
        fields = {"url": known.url, "dialect": dialect, "caches": known.caches, "model": model, "api_key": key}
    elif found := _ADDRESS.fullmatch(text):
        model = found[2]
        fields = {"url": found[1], "model": model}
    else:
        *others, last = (f"{name}:MODEL" for name in _PROVIDERS)
        raise ConfigError(
            f"the upstream {shown!r} is neither {', '.join(others)} or {last} nor an address such as "
            "http://127.0.0.1:8001/v1#MODEL; write it as one of these, or set QGUIDE_UPSTREAMS"
        )
    if not _NAME.fullmatch(model):
        raise ConfigError(
            f"the model {without_secrets(model)!r} of the upstream {shown!r} cannot be its name, which takes 1 to 64 "
            "letters, digits and ._/-; name it yourself in QGUIDE_UPSTREAMS"
        )
    return model, fields
