"""Builds policies for the configured OpenAI-compatible servers."""

from pathlib import Path
from typing import Final

from qguide.qnet.errors import ConfigError
from qguide.qnet.models.hub import is_hub_name
from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.qnet.policies.upstream_dialects import build_dialect
from qguide.qnet.policies.upstream_settings import UpstreamLimits
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import EMBEDDED, SCRIPTED, Settings

_SHARE_OF_DECISION: Final = 0.9
"""Below 1, so that the circuit breaker sees the timeout before the decision's own deadline."""


def check_policies(settings: Settings) -> None:
    """Check that `policy` and `paraphraser` name something, before anything is loaded."""
    for setting, named in (("POLICY", settings.policy), ("PARAPHRASER", settings.paraphraser)):
        known = named in ("", EMBEDDED, SCRIPTED, *settings.upstreams)
        if known or Path(named).is_dir() or is_hub_name(named):
            continue
        upstreams = ", ".join(settings.upstreams) or "none; add it to QGUIDE_UPSTREAMS"
        raise ConfigError(
            f"QGUIDE_{setting} is {named!r}, which is no upstream ({upstreams}), no folder and no "
            f"name on the Hugging Face hub; name one of them, {EMBEDDED!r} or {SCRIPTED!r}"
        )


def build_upstream(settings: Settings, name: str, upstream: Upstream) -> OpenAICompatiblePolicy:
    """Build the policy of one upstream; nothing is sent before the first request."""
    limits = UpstreamLimits(
        timeout_s=upstream.timeout_s
        or min(settings.idle_timeout_s, settings.timeout_s * _SHARE_OF_DECISION),
        connect_timeout_s=upstream.connect_timeout_s,
        max_connections=upstream.max_connections,
        max_answer_bytes=upstream.max_answer_bytes,
        retries=upstream.retries,
        breaker_failures=upstream.breaker_failures,
        breaker_open_s=upstream.breaker_open_s,
    )
    return OpenAICompatiblePolicy(
        name,
        url=str(upstream.url),
        model=upstream.model,
        api_key=upstream.api_key.get_secret_value() if upstream.api_key else None,
        takes_n=upstream.n == "one_request",
        caches=upstream.caches,
        dialect=build_dialect(upstream.dialect, upstream.max_tokens_name),
        takes_cache_salt=upstream.cache_salt,
        streams=upstream.stream,
        limits=limits,
    )
