"""View of the OpenAPI schemas with the names and groups of the clients. Pure.

A client's method takes some fields of a body as arguments and the rest as options, and responses
have shorter names than on the server. Everything else is unchanged.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Schema = dict[str, Any]
Schemas = dict[str, Schema]

NAMES: Final = {
    "ActResponse": "Decision",
    "ScoreResponse": "Scores",
    "ScoreBatchResponse": "ScoreBatch",
    "JinaRerankResponse": "Ranking",
    "JinaRankedDocument": "RankedDocument",
    "JinaUsage": "RerankUsage",
    "OutcomeResponse": "Outcome",
    "AttemptsResponse": "Verdicts",
    "Health": "Readiness",
    "ToolCallBody": "ToolCall",
    "CustomCallBody": "CustomToolCall",
    "ChatToolCall": "ToolCall",
    "ChatCustomCall": "CustomToolCall",
    "ChatFunction": "CalledFunction",
    "ChatTool": "CalledTool",
    "ChatReply": "ChatMessage",
    "ToolCallDelta": "ToolCallPiece",
}
"""Client's name by the server's; two server schemas with equal fields may share a name."""

PARENTS: Final = {
    "Scores": "ScoredItem",
    "Usage": "ScoreUsage",
    "Timings": "ScoreTimings",
    "SampleUsage": "ParaphraseUsage",
    "ActOptions": "ModelOptions",
    "RerankOptions": "ModelOptions",
    "BatchOptions": "ModelOptions",
    "ScoreOptions": "ModelOptions",
}
"""Types that extend another; the OpenAPI document repeats the inherited fields."""

_KEPT: Final = frozenset(("$ref", "anyOf", "const", "default", "description", "enum", "items", "oneOf", "type"))
"""Keywords that define a type; limits are left out, because the server checks them."""


@dataclass(frozen=True, slots=True)
class Options:
    """A body without the fields that a client's method takes as arguments.

    Attributes:
        text: description of the type.
        body: name of the body on the server.
        arguments: fields to leave out.
        renamed: the client's name by the server's, for fields that are renamed.
    """

    text: str
    body: str
    arguments: frozenset[str]
    renamed: Mapping[str, str] = field(default_factory=dict)


_ITEM: Final = frozenset(("messages", "candidates", "counts", "logprobs", "tools", "greedy"))
"""Fields that each item of a batch has for itself."""

OPTIONS: Final = {
    "ModelOptions": Options(
        "Options of a request that only scores.",
        "ScoreRequestBody",
        _ITEM | {"earned", "least_read", "long_history", "out_of_domain", "selection", "tau"},
    ),
    "BatchOptions": Options("Options of scoring a batch.", "ScoreRequestBody", _ITEM | {"earned"}),
    "ScoreOptions": Options(
        "Options of scoring candidates.", "ScoreRequestBody", frozenset(("messages", "candidates"))
    ),
    "ActOptions": Options("Options of drawing candidates and scoring them.", "ActRequest", frozenset(("messages",))),
    "RerankOptions": Options(
        "Options of a reranking.",
        "JinaRerankRequest",
        frozenset(("query", "messages", "documents", "return_documents")),
        {"model": "q_model"},
    ),
    "OutcomeOptions": Options("Options of an episode's outcome.", "OutcomeRequest", frozenset(("reward",))),
    "AttemptsOptions": Options("Options of a comparison of attempts.", "AttemptsRequest", frozenset(("attempts",))),
    "GuidanceOptions": Options(
        "Options under `qguide` in the body of a chat completion.", "GuidanceOptions", frozenset()
    ),
    "ChatParameters": Options(
        "Parameters of a chat completion that the server itself reads.",
        "ChatCompletionRequest",
        frozenset(("messages", "stream", "stream_options")),
    ),
}
ANSWERS: Final = (
    "ActResponse",
    "ScoreResponse",
    "ScoreBatchResponse",
    "JinaRerankResponse",
    "OutcomeResponse",
    "AttemptsResponse",
    "ModelList",
    "Health",
    "ChatCompletion",
    "ChatChunk",
)
"""Response bodies that the clients read, by the server's names."""

_TEXTS: Final = {
    "RankedDocument": "A document's place and its Q.",
    "Ranking": "The documents from the highest Q to the lowest.",
}
"""Descriptions of types whose own mention fields that the clients leave out."""

_NOT_ASKED_FOR: Final = {"RankedDocument": "document"}
"""Fields that a response has only for a parameter that the clients never send."""


def options_view(document: Mapping[str, Any], names: Mapping[str, str] = NAMES) -> Schemas:
    """Options of the clients' methods, by the clients' names."""
    schemas: Schemas = document["components"]["schemas"]
    return _view(schemas, {name: _without(schemas, one) for name, one in OPTIONS.items()}, names)


def bodies_view(document: Mapping[str, Any], roots: Iterable[str], names: Mapping[str, str] = NAMES) -> Schemas:
    """Bodies and the schemas they refer to, by the clients' names.

    Args:
        roots: names of the bodies on the server.
    """
    schemas: Schemas = document["components"]["schemas"]
    return _view(schemas, {root: schemas[root] for root in roots}, names)


def named_by(schemas: Schemas, roots: Iterable[str]) -> Schemas:
    """The given roots and all schemas that they refer to, in alphabetical order."""
    needed = dict(_reachable(schemas, {root: schemas[root] for root in roots}))
    return dict(sorted(needed.items()))


def _without(schemas: Schemas, options: Options) -> Schema:
    body = schemas[options.body]
    if missing := options.arguments - body["properties"].keys():
        raise KeyError(f"{options.body} has no {sorted(missing)}; update OPTIONS in {__name__}")
    kept = {
        options.renamed.get(name, name): part
        for name, part in body["properties"].items()
        if name not in options.arguments
    }
    return {"description": options.text, "properties": kept}


def _view(schemas: Schemas, roots: Schemas, names: Mapping[str, str]) -> Schemas:
    found: Schemas = {}
    for server_name, schema in _reachable(schemas, roots):
        name = names.get(server_name, server_name)
        object_ = _object(name, schema, names)
        if name in found and _shape(found[name]) != _shape(object_):
            raise ValueError(f"{server_name} is also named {name} but has other fields; update NAMES")
        found.setdefault(name, object_)
    for child, parent in PARENTS.items():
        if child in found:
            found[child] = _extending(found[child], parent, found[parent])
    return named_by(found, [names.get(root, root) for root in roots])


def _reachable(schemas: Schemas, roots: Schemas) -> Iterator[tuple[str, Schema]]:
    waiting, seen = list(roots.items()), set(roots)
    while waiting:
        name, schema = waiting.pop()
        yield name, schema
        for target in _references(schema):
            if target not in seen:
                seen.add(target)
                waiting.append((target, schemas[target]))


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield _target(value["$ref"])
        for part in value.values():
            yield from _references(part)
    elif isinstance(value, list):
        for part in value:
            yield from _references(part)


def _target(reference: str) -> str:
    return reference.rpartition("/")[2]


def _object(name: str, schema: Schema, names: Mapping[str, str]) -> Schema:
    fields = {
        field: _type(part, names) for field, part in schema["properties"].items() if _NOT_ASKED_FOR.get(name) != field
    }
    required = [one for one in schema.get("required", ()) if one in fields]
    text = _TEXTS.get(name) or schema.get("description", "")
    return {"type": "object", "description": text, "properties": fields, "required": required}


def _type(part: Schema, names: Mapping[str, str]) -> Schema:
    """Schema of a field's type without the keywords for validation."""
    kept: Schema = {key: value for key, value in part.items() if key in _KEPT}
    if "$ref" in kept:
        kept["$ref"] = reference(names.get(_target(kept["$ref"]), _target(kept["$ref"])))
    for key in ("anyOf", "oneOf"):
        if key in kept:
            kept[key] = [_type(one, names) for one in kept[key]]
    if "items" in kept:
        kept["items"] = _type(kept["items"], names)
    if isinstance(kept.get("default"), dict | list) or kept.get("default") == "":
        del kept["default"]
    if isinstance(values := part.get("additionalProperties"), dict):
        kept["additionalProperties"] = _type(values, names)
    elif values:
        kept["additionalProperties"] = True
    return kept


def reference(name: str) -> str:
    """A reference to a schema by its name."""
    return f"#/components/schemas/{name}"


def _shape(schema: object) -> object:
    """A schema without its descriptions."""
    if isinstance(schema, dict):
        return {key: _shape(part) for key, part in schema.items() if key != "description"}
    return [_shape(part) for part in schema] if isinstance(schema, list) else schema


def _extending(child: Schema, parent_name: str, parent: Schema) -> Schema:
    inherited = parent["properties"]
    if missing := inherited.keys() - child["properties"].keys():
        raise ValueError(f"{parent_name} has {sorted(missing)}, which its child lacks; update PARENTS")
    own = {name: part for name, part in child["properties"].items() if name not in inherited}
    return {
        "description": child["description"],
        "allOf": [
            {"$ref": reference(parent_name)},
            {"type": "object", "properties": own, "required": [name for name in child["required"] if name in own]},
        ],
    }
