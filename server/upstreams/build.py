"""Builds policies for the configured OpenAI-compatible servers."""

from typing import Final

from qnet.policies.openai_compatible import OpenAICompatiblePolicy, UpstreamLimits
from server.settings.settings import Settings, Upstream

_SHARE_OF_DECISION: Final = 0.9
"""Below 1, so that the circuit breaker sees the timeout before the decision's own deadline."""


def build_upstream(settings: Settings, name: str, upstream: Upstream) -> OpenAICompatiblePolicy:
    """Build the policy of one upstream; nothing is sent before the first request."""
    limits = UpstreamLimits(
        timeout_s=upstream.timeout_s or settings.timeout_s * _SHARE_OF_DECISION,
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
        max_tokens_name=upstream.max_tokens_name,
        takes_cache_salt=upstream.cache_salt,
        limits=limits,
    )
