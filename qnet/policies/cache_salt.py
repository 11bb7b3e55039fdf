"""Cache salt of a request to vLLM, under which no other caller's cached prefix is found."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from qguide.qnet.tenant import current_tenant


def cache_salt_of(body: Mapping[str, Any]) -> dict[str, str]:
    """The salt to send; a caller that gives one of its own divides its own cache further."""
    salt = current_tenant().cache_salt
    if not salt:
        return {}
    given = json.dumps(body.get("cache_salt"))
    return {"cache_salt": sha256(f"{salt}\0{given}".encode()).hexdigest()}
