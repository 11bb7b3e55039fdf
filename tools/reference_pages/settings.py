"""Reference page of the server's settings."""

from typing import Final

from pydantic import BaseModel

from qguide.qnet.judging.settings import JudgeSettings
from qguide.server.settings.outcome_rules import OutcomeRule
from qguide.server.settings.remote_models import Classifier, Upstream, VllmTrunk
from qguide.server.settings.settings import Settings
from qguide.server.settings.thresholds import ThresholdSettings
from tools.reference_pages.fields import default, limits, meanings
from tools.reference_pages.markdown import code, page, table

_GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Address and access": (
        "host", "port", "keys_file", "insecure", "admin", "public_", "cors_origins", "playground",
        "trusted_", "allowed_hosts",
    ),
    "Policies": (
        "policy", "upstreams", "vllm", "num_candidates", "guidance_temperature", "adaptive",
        "paraphrase", "task_markers", "idle_timeout_s",
    ),
    "Q models": (
        "q_models", "default_q_model", "aliases", "shadows", "models_dir", "vllm_trunks",
        "classifiers", "judges", "thresholds", "long_history", "score_cache", "fallback",
        "selection", "tau", "prior", "out_of_domain", "least_read", "unlicensed", "read_ahead",
    ),
    "Device": ("device", "dtype", "full_seq", "threads", "cache_", "max_waiting", "max_batch"),
    "Connections": (
        "max_connections", "max_header", "head_timeout_s", "body_timeout_s", "keep_alive_s",
    ),
    "Requests": ("max_", "timeout_s", "heartbeat_s", "unknown_models", "caller_", "responses_"),
    "API keys": ("requests_per_minute", "tokens_per_day", "concurrent_requests"),
    "Episodes": ("episode", "outcome_", "replica", "min_reward", "max_reward"),
    "Learning": ("learn",),
    "Operation": ("redis_url", "otlp_endpoint", "log_level", "drain_delay_s", "shutdown_"),
}  # fmt: skip
"""Sections of the page and the prefixes of their settings; the longest prefix wins."""
_OTHER: Final = "Other"
_INTRODUCTION: Final = (
    "Every setting is an environment variable, read once when the server starts. Maps and lists "
    "are written as JSON. [Configuration](../operate/configuration.md) says what happens at an "
    "invalid value or a misspelt name."
)


def settings_page() -> str:
    """Tables of all settings by section, then of the entries of nested settings."""
    parts = [_INTRODUCTION]
    for title in [*_GROUPS, _OTHER]:
        names = [name for name in Settings.model_fields if _group_of(name) == title]
        if names:
            parts += [f"## {title}", _rows_of(Settings, names, prefix="QGUIDE_")]
    for title, kind, place in (
        ("Upstream", Upstream, "QGUIDE_UPSTREAMS"),
        ("vLLM trunk", VllmTrunk, "QGUIDE_VLLM_TRUNKS"),
        ("Classifier", Classifier, "QGUIDE_CLASSIFIERS"),
        ("Judge", JudgeSettings, "QGUIDE_JUDGES"),
        ("Threshold", ThresholdSettings, "QGUIDE_THRESHOLDS"),
        ("Outcome rule", OutcomeRule, "QGUIDE_OUTCOME_RULES"),
    ):
        parts += [f"## {title}", f"One entry of `{place}`.", _rows_of(kind, [*kind.model_fields])]
    return page("Settings", *parts)


def _group_of(name: str) -> str:
    fitting = [(len(start), title) for title, starts in _GROUPS.items() for start in starts if name.startswith(start)]
    return max(fitting)[1] if fitting else _OTHER


def _rows_of(kind: type[BaseModel], names: list[str], *, prefix: str = "") -> str:
    texts, ranges = meanings(kind), limits(kind)
    header = ("variable" if prefix else "field", "default", "value", "meaning")
    rows = [
        (code(prefix + (name.upper() if prefix else name)), default(kind, name), ranges[name], texts[name])
        for name in names
    ]
    return table(header, rows)
