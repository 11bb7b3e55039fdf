"""Addresses and references in the content of callers' messages, and tools of their requests. Pure.

An upstream fetches an image's address with its own network, where the caller may not reach: the metadata service of a
cloud, a router, another tenant. It opens a file's id with the operator's key.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from qguide.qnet.errors import InvalidRequestError, UnsupportedParameterError, without_secrets
from qguide.qnet.types import History

ANY_HOST: Final = "*"

_PARTS: Final = frozenset(
    (*("text", "refusal", "thinking", "image_url", "video_url", "audio_url"), *("input_audio", "file"))
)
"""Others hold tensors (`image_embeds`, `prompt_embeds`) or are one server's own."""
_ADDRESSES: Final = frozenset(("url", "image_url", "video_url", "audio_url", "file_url", "fileUri", "file_uri"))
_FILE: Final = "file_id"
_BYTES: Final = frozenset(("file_data", "data"))  # base64, where some upstreams take an address
_NOT_FETCHED: Final = frozenset(("input", "arguments", "args", "response", "citations", "annotations", "logprobs"))
"""Fields in which an address is text: arguments of a tool and its result, sources that an answer quotes."""
_TOLD: Final = (("text", "data"), ("browser_state", "tabs"), ("browser_state", "state_changes"))
"""Likewise in parts of these types: a document of plain text, and what a caller's browser shows."""
_UNUSUAL: Final = re.compile(r"[\s\\\x00-\x1f]")  # characters that parsers of addresses take differently
_SHOWN: Final = 80
_KINDS: Final = ("function", "custom")
_CHOICES: Final = (*_KINDS, "allowed_tools")


@dataclass(frozen=True, slots=True)
class Reach:
    """Addresses and files that callers may make an upstream fetch or open.

    Attributes:
        hosts: of addresses, in lower case; `*` is any.
        fields: fields and types of parts that the operator allows in addition.
    """

    hosts: Collection[str] = ()
    fields: Collection[str] = ()

    def check_history(self, history: History) -> None:
        """Check the turns of a chat that goes to an upstream."""
        for index, message in enumerate(history):
            place = f"messages[{index}]"
            fields = dict(message.wire or {})
            self.check_parts(fields.pop("content", None), f"{place}.content")
            self.check_addresses(fields, place)

    def check_parts(self, content: object, place: str) -> None:
        """Check the content of a chat's message."""
        if not isinstance(content, list):
            return
        for index, part in enumerate(content):
            kind = part.get("type")
            if kind not in _PARTS and kind not in self.fields:
                raise InvalidRequestError(
                    f"{place}[{index}] is a part of type {str(kind)[:40]!r}; callers may send "
                    f"{', '.join(sorted(_PARTS))}; leave it out, or let the operator name it in QGUIDE_CALLER_FIELDS"
                )
        self.check_addresses(content, place)

    def check_addresses(self, value: object, place: str) -> None:
        """Check every address and reference in a part, or in parts within parts."""
        if isinstance(value, list):
            for index, inner in enumerate(value):
                self.check_addresses(inner, f"{place}[{index}]")
        elif isinstance(value, Mapping):
            for name, inner in value.items():
                if (value.get("type"), name) not in _TOLD:
                    self._check_field(name, inner, f"{place}.{name[:40]}")

    def _check_field(self, name: str, value: object, place: str) -> None:
        if name == _FILE and value and name not in self.fields:
            raise InvalidRequestError(
                f"{place} names a file of the upstream's account, which is the operator's; send the bytes, or let the "
                f"operator name {_FILE!r} in QGUIDE_CALLER_FIELDS"
            )
        if name in _NOT_FETCHED:
            return
        if name in _ADDRESSES or (name in _BYTES and ":" in str(value)):
            for address in value if isinstance(value, list) else [value]:
                self._check_address(address, place)
        self.check_addresses(value, place)

    def _check_address(self, address: object, place: str) -> None:
        if not isinstance(address, str) or self._may_fetch(address):
            return
        named = ", ".join(sorted(self.hosts)) or "none"
        raise InvalidRequestError(
            f"{place} is the address {without_secrets(address)[:_SHOWN]!r}, which an upstream would fetch; send the "
            f"bytes as a data: URL, or let the operator name its host in QGUIDE_CALLER_MEDIA_DOMAINS (now: {named})"
        )

    def _may_fetch(self, address: str) -> bool:
        if address[:5].lower() == "data:":
            return True
        if _UNUSUAL.search(address):
            return False
        try:
            parts = urlsplit(address)
            host = parts.hostname or ""
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or "@" in parts.netloc:
            return False
        return ANY_HOST in self.hosts or host in self.hosts


def check_tools(parameters: Mapping[str, Any]) -> None:
    """Check that a chat's tools are those that the caller runs itself."""
    tools = parameters.get("tools") or ()
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise UnsupportedParameterError("tools is no list; send a list of tools", parameter="tools")
    for index, tool in enumerate(tools):
        fields = tool if isinstance(tool, Mapping) else {"type": tool}
        kind = fields.get("type", "function")
        if kind in _KINDS and isinstance(fields.get(kind), Mapping):
            continue
        if kind in _KINDS and "type" in fields:
            raise UnsupportedParameterError(
                f"tools[{index}] has the type {kind!r} and no object of that name; a chat completion's tools are "
                f'{{"type": "{kind}", "{kind}": {{"name": …}}}}',
                parameter="tools",
            )
        raise _not_ours(f"tools[{index}]", str(fields.get("type") or next(iter(fields), "")), "tools")
    choice = parameters.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type", "function") not in _CHOICES:
        raise _not_ours("tool_choice", str(choice["type"]), "tool_choice")


def _not_ours(place: str, kind: str, parameter: str) -> UnsupportedParameterError:
    return UnsupportedParameterError(
        f"{place} is {kind[:40]!r}, whose result no Q model would see; send tools of the types {' and '.join(_KINDS)}, "
        "which the caller runs",
        parameter=parameter,
    )
