"""Upstreams of the command line: `openai:MODEL`, `anthropic:MODEL`, or an address "#" a model."""

import os
import re
from typing import Any, Final

from qguide.qnet.errors import ConfigError
from qguide.qnet.support.addresses import without_secrets

_PROVIDERS: Final = {
    "openai": ("OPENAI_API_KEY", {"url": "https://api.openai.com/v1"}),
    "anthropic": (
        "ANTHROPIC_API_KEY",
        {"url": "https://api.anthropic.com/v1", "dialect": "messages"},
    ),
}
"""The variable that holds a provider's key, and settings of its upstreams."""
_ADDRESS: Final = re.compile(r"(https?://[^#\s]+)#(\S+)")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")


def named_upstream(text: str) -> tuple[str, dict[str, Any]]:
    """Name and settings of an upstream; its name is that of its model."""
    shown = without_secrets(text)
    provider, _, model = text.partition(":")
    if provider in _PROVIDERS:
        variable, settings = _PROVIDERS[provider]
        key = os.environ.get(variable, "")
        if not key:
            raise ConfigError(
                f"the upstream {shown!r} needs a key, but {variable} is not set; export it"
            )
        fields = {**settings, "model": model, "api_key": key}
    elif found := _ADDRESS.fullmatch(text):
        model = found[2]
        fields = {"url": found[1], "model": model}
    else:
        raise ConfigError(
            f"the upstream {shown!r} is neither openai:MODEL or anthropic:MODEL nor an address "
            "such as http://127.0.0.1:8001/v1#MODEL; write it as one of these, or set "
            "QGUIDE_UPSTREAMS"
        )
    if not _NAME.fullmatch(model):
        raise ConfigError(
            f"the model {without_secrets(model)!r} of the upstream {shown!r} cannot be its name, "
            "which takes 1 to 64 letters, digits and ._/-; name it yourself in QGUIDE_UPSTREAMS"
        )
    return model, fields
