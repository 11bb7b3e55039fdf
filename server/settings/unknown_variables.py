"""Variables QGUIDE_… that no setting reads: those that are misspelt, and those that are empty."""

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from qguide.qnet.errors import ConfigError

PREFIX: Final = "QGUIDE_"

PROTECTING: Final = frozenset(
    {
        *("host", "trusted_hosts", "cors_origins", "keys_file", "playground", "admin_metrics"),
        *("caller_fields", "caller_media_domains", "episodes_redact", "episodes_redact_timeout_s", "episodes_ttl_s"),
        *("episode_max_bytes", "episode_max_steps", "concurrent_requests", "requests_per_minute", "tokens_per_day"),
        *("max_connections", "max_connections_per_address", "max_header_bytes", "max_headers", "head_timeout_s"),
        *("max_body_bytes", "body_timeout_s", "max_text_bytes", "max_history_messages"),
        *("max_candidates", "max_score_items"),
    }
)
"""Settings without which texts are recorded in clear, or the server is open wider than meant."""

OTHERS: Final = frozenset(
    {
        *("API_KEY", "CHROMIUM", "DATA", "KEY", "LITELLM_PYTHON", "OPENAPI_CASES", "OPEN_RESPONSES", "PROMETHEUS"),
        *("REDIS_SERVER", "TEST_GATE", "TEST_IMAGE", "URL"),
    }
)
"""Variables of clients, examples and tests, which a server's environment may hold as well."""

_SERVICE_LINK: Final = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_[A-Z]+\w*)?)")
"""Variables that Kubernetes sets for services whose names begin with qguide-."""


def check_names(variables: Iterable[str], settings: Iterable[str]) -> list[str]:
    """Warnings about QGUIDE_… variables that no setting reads, with the nearest setting's name."""
    known = {name.upper() for name in settings}
    warnings, refusals = [], []
    for variable in sorted(variables):
        prefix, name = variable[: len(PREFIX)].upper(), variable[len(PREFIX) :].upper()
        if prefix != PREFIX or name in known | OTHERS or _SERVICE_LINK.fullmatch(f"_{name}"):
            continue
        nearest = next(iter(get_close_matches(name, known, n=1)), None)
        said = f"{variable} is not a setting"
        if nearest is None:
            warnings.append(f"{said} and is ignored; see docs/reference/settings.md")
        elif nearest.lower() in PROTECTING:
            refusals.append(f"{said}; write {PREFIX}{nearest} or unset it")
        else:
            warnings.append(f"{said} and is ignored; did you mean {PREFIX}{nearest}?")
    if refusals:
        raise ConfigError(f"{'; '.join(refusals)}. The server would be less protected than meant")
    return warnings


def check_values(variables: Mapping[str, str], settings: Iterable[str]) -> list[str]:
    """Warnings about settings that are empty, as a variable that was not set leaves them in a compose file."""
    known = {f"{PREFIX}{name.upper()}" for name in set(settings) - PROTECTING}
    empty = sorted(name for name, value in variables.items() if not value and name.upper() in known)
    return [f"{name} is empty and is ignored" for name in empty]


def refuse_unprotected(variables: Mapping[str, str], given: Collection[str]) -> None:
    """Refuse empty variables of settings that protect, except where the setting is given in another way."""
    names = {f"{PREFIX}{name.upper()}" for name in PROTECTING - set(given)}
    if refused := sorted(name for name, value in variables.items() if not value and name.upper() in names):
        raise ConfigError(
            f"{', '.join(refused)}: empty, so the server might be less protected than meant; give a value or unset it"
        )
