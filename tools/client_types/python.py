"""Generator of the Python client's types: pydantic models of responses, `TypedDict`s of options."""

import json
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tools.client_types.view import ANSWERS, NAMES, Schema, Schemas, bodies_view, named_by, options_view

FOLDER: Final = "clients/python/src/qguide_client"
_NAMES: Final = NAMES | {"DrawnMessage": "Message"}
_ANSWER: Final = "qguide_client.answer"
_BASES: Final = {
    "ChatChunk": "ChunkBase",
    "ChatCompletion": "CompletionBase",
    "ChatMessage": "ReplyBase",
    "CustomToolCall": "CustomToolCallBase",
    "Readiness": "ReadinessBase",
    "ScoredItem": "ScoredItemBase",
    "ToolCall": "ToolCallBase",
}
"""Base class of each response that has properties or validators besides its fields."""

_DEFAULTS: Final[Mapping[str, Mapping[str, object]]] = {
    "ChatChunk": {"created": 0},
    "ChatChunkChoice": {"logprobs": None, "finish_reason": None},
    "ChatChoice": {"logprobs": None},
    "ChatCompletion": {"created": 0},
    "ChatGuidance": {
        "candidates": [],
        "distinct_candidates": 0,
        "draws_saved": 0,
        "num_candidates": 0,
        "perturbed": 0,
        "policy": "",
        "reason": None,
        "returned": [],
        "timings_ms": None,
        "unguided_reason": None,
        "usage": None,
        "warnings": [],
    },
    "ChatMessage": {"content": None, "tool_calls": []},
    "ChatUsage": {"completion_tokens_details": {}, "prompt_tokens_details": None},
    "Decision": {"draws_saved": 0, "guided": True, "perturbed": 0, "warnings": []},
    "ModelCard": {"created": 0, "owned_by": "", "read_at": None},
    "Outcome": {"reason": None},
    "Readiness": {"details": {}},
    "Timings": {"paraphrase": 0.0},
    "Usage": {"cached_prompt_tokens": 0, "paraphrase_tokens": 0},
}
"""Defaults of fields that an older server, or a proxy, may leave out."""

_ANY: Final[Schema] = {"type": "object", "additionalProperties": True}
_PLAIN: Final = {("ChatChunkChoice", "delta"): _ANY, ("ChatGuidance", "candidates"): {"type": "array", "items": _ANY}}
"""Fields that are not parsed, because their content varies."""

_DEADLINE: Final[Schema] = {
    "type": "number",
    "description": "seconds, retries included, after which the answer is of no use; the server "
    "stops its work then and may have a shorter limit of its own",
}
_WITHOUT_DEADLINE: Final = ("GuidanceOptions", "OutcomeOptions", "PolicyShare")
_HEADER: Final = '''"""{title}

Generated from the server's OpenAPI document by `make client-types`; do not edit.
"""
'''
_EMPTY: Final = re.compile(r" = (\[\]|Field\(\[\], validate_default=True\))$", re.MULTILINE)
_LIST: Final = re.compile(r"\blist\[([^\[\]]+(?:\[[^\[\]]*\])?)\]")


_STYLE: Final = (
    "--target-python-version=3.11",
    "--enum-field-as-literal=all",
    "--strict-nullable",
    "--use-schema-description",
    "--use-field-description",
    "--use-single-line-docstring",
    "--no-use-closed-typed-dict",
    "--disable-future-imports",
    "--disable-timestamp",
    "--formatters=builtin",
)
_WIDTH: Final = 92


def python_files(document: Mapping[str, Any]) -> dict[str, str]:
    """Text of each generated file by its path in the repository."""
    models = _generated(
        "Answers of the server.",
        _answers(document),
        "pydantic_v2.BaseModel",
        f"--base-class={_ANSWER}.Answer",
        f"--base-class-map={json.dumps({k: f'{_ANSWER}.{base}' for k, base in _BASES.items()})}",
    )
    # Responses are immutable, so their lists are tuples.
    models = _EMPTY.sub(" = ()", _LIST.sub(r"tuple[\1, ...]", models))
    options = _generated(
        "Options of the client's methods.", _options(document), "typing.TypedDict", "--use-total-false-for-typed-dict"
    )
    return {f"{FOLDER}/answers.py": _formatted(models), f"{FOLDER}/options.py": _formatted(options)}


def _answers(document: Mapping[str, Any]) -> Schemas:
    schemas = bodies_view(document, ANSWERS, _NAMES)
    for name, schema in schemas.items():
        own = schema["allOf"][1] if "allOf" in schema else schema
        own["properties"].pop("object", None)  # redundant, as the class identifies the type
        for field, part in own["properties"].items():
            own["properties"][field] = _PLAIN.get((name, field)) or _open(part)
        for field, value in _DEFAULTS.get(name, {}).items():
            if value is None:
                own["properties"][field] = _nullable(own["properties"][field])
            else:
                own["properties"][field]["default"] = value
        missing = _DEFAULTS.get(name, {}).keys() | {"object"}
        own["required"] = [one for one in own["required"] if one not in missing]
    return named_by(schemas, [_NAMES.get(root, root) for root in ANSWERS])


def _open(part: Schema) -> Schema:
    """Replace an enumeration by any text, because a newer server may have more values."""
    return {key: value for key, value in part.items() if key != "enum"}


def _nullable(part: Schema) -> Schema:
    null = {"type": "null"}
    if null in part.get("anyOf", ()):
        return part
    text = {"description": part["description"]} if "description" in part else {}
    return {"anyOf": [{k: v for k, v in part.items() if k != "description"}, null], **text}


def _options(document: Mapping[str, Any]) -> Schemas:
    schemas = options_view(document, _NAMES)
    for name, schema in schemas.items():
        if name not in _WITHOUT_DEADLINE and "allOf" not in schema:
            schema["properties"]["deadline_s"] = _DEADLINE
    return schemas


def _generated(title: str, schemas: Schemas, kind: str, *more: str) -> str:
    """Generate the text of a module with the types."""
    document = {"openapi": "3.1.0", "paths": {}, "components": {"schemas": _wrapped(schemas)}}
    header = _HEADER.format(title=title)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "openapi.json"
        source.write_text(json.dumps(document), encoding="utf-8")
        return _run(
            "datamodel_code_generator",
            f"--input={source}",
            "--input-file-type=openapi",
            f"--output-model-type={kind}",
            f"--custom-file-header={header}",
            *_STYLE,
            *more,
        )


def _wrapped(schema: Any) -> Any:
    """Wrap the descriptions of a schema's fields to the line length."""
    if isinstance(schema, list):
        return [_wrapped(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    wrapped = {key: _wrapped(part) for key, part in schema.items()}
    text = schema.get("description")
    if isinstance(text, str) and not {"properties", "allOf"} & schema.keys():
        wrapped["description"] = textwrap.fill(text, _WIDTH)
    return wrapped


def _formatted(text: str) -> str:
    for command in (("check", "--select=D2,F401,I", "--fix", "--quiet"), ("format",)):
        text = _run("ruff", *command, "--stdin-filename=generated.py", "-", text=text)
    return text


def _run(module: str, *options: str, text: str = "") -> str:
    """Run a Python module of this environment; returns its output."""
    command = [sys.executable, "-m", module, *options]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{module} failed: {done.stderr or done.stdout}")
    return done.stdout
