"""Generator of the TypeScript client's types, by a script of its package (openapi-typescript)."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tools.client_types.view import ANSWERS, NAMES, Schemas, bodies_view, options_view

PACKAGE: Final = "clients/typescript"
SCHEMAS: Final = "src/schemas.ts"
SCRIPT: Final = "scripts/schemas.mjs"
_NAMES: Final = NAMES | {"ChatMessage": "Message"}
_SENT: Final = ("ScoreItem", "ChatTurn", "Attempt")
"""Bodies and parts of bodies that callers construct."""


def typescript_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAPI document for the script: only schemas, by the client's names."""
    schemas: Schemas = bodies_view(document, (*ANSWERS, *_SENT), _NAMES)
    schemas = dict(sorted((schemas | options_view(document, _NAMES)).items()))
    return {
        "openapi": "3.1.0",
        "info": {"title": "QGuide", "version": "1"},
        "paths": {},
        "components": {"schemas": schemas},
    }


def typescript_schemas(document: Mapping[str, Any], package: Path) -> str:
    """Generate the text of `SCHEMAS`.

    Args:
        package: the client's folder, with its development dependencies installed.

    Raises:
        RuntimeError: the script failed, for example because `npm ci` did not run.
    """
    done = subprocess.run(
        ["node", SCRIPT],
        cwd=package,
        input=json.dumps(typescript_document(document)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{package / SCRIPT} failed; run `npm ci` first: {done.stderr}")
    return done.stdout
