"""Check of a tool call's arguments against the tool's JSON schema.

Schemas come from callers, so nothing is fetched, no pattern is run and the work is bounded. What is
not checked counts as conforming: an argument is refused only for what is certainly wrong.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

MOST_CHECKS: Final = 10_000
"""Values compared with schemas in one check; schemas that refer to themselves have no end."""
_MOST_LEVELS: Final = 100

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
}


def conforms(value: object, schema: object) -> bool:
    """True unless the value certainly breaks the schema.

    Args:
        value: what JSON can hold.
        schema: any value; what is no schema refuses nothing. Read are type, enum, const,
            properties, required, additionalProperties, items, the limits of numbers and lengths,
            anyOf, oneOf (as anyOf), allOf and references within the schema.
    """
    return _Check(schema).passes(value, schema)


class _Check:
    """One check, with what is left of its work."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._left = MOST_CHECKS

    def passes(self, value: object, schema: object, depth: int = 0) -> bool:
        self._left -= 1
        if self._left < 0 or depth > _MOST_LEVELS:
            return True
        if schema is False:
            return False
        if not isinstance(schema, Mapping):
            return True
        self._left -= len(_listed(schema.get("enum"))) + len(_listed(schema.get("required")))
        if isinstance(reference := schema.get("$ref"), str):
            return self.passes(value, self._referred(reference), depth + 1)
        if schema.get("nullable") is True and value is None:
            return True
        return (
            _has_type(value, schema.get("type"))
            and _is_listed(value, schema)
            and _is_within(value, schema)
            and self._combines(value, schema, depth + 1)
            and self._holds(value, schema, depth + 1)
        )

    def _referred(self, reference: str) -> object:
        """The part of the schema that a reference such as `#/$defs/Point` names."""
        part = self._root
        for name in reference.removeprefix("#").strip("/").split("/"):
            if name and not (reference.startswith("#") and isinstance(part, Mapping)):
                return True
            if name and isinstance(part, Mapping):
                part = part.get(name.replace("~1", "/").replace("~0", "~"), True)
        return part

    def _combines(self, value: object, schema: Mapping[str, Any], depth: int) -> bool:
        everyone = _listed(schema.get("allOf"))
        if not all(self.passes(value, part, depth) for part in everyone):
            return False
        choices = [_listed(schema.get(name)) for name in ("anyOf", "oneOf")]
        return all(
            not parts or any(self.passes(value, part, depth) for part in parts) for parts in choices
        )

    def _holds(self, value: object, schema: Mapping[str, Any], depth: int) -> bool:
        """True if the members of an object or a list conform."""
        if isinstance(value, list):
            items = schema.get("items", True)
            return all(self.passes(item, items, depth) for item in value)
        if not isinstance(value, dict):
            return True
        if any(isinstance(n, str) and n not in value for n in _listed(schema.get("required"))):
            return False
        own, others = schema.get("properties"), schema.get("additionalProperties", True)
        known = own if isinstance(own, Mapping) else {}
        if "patternProperties" in schema:
            others = True
        return all(
            self.passes(part, known.get(name, others), depth) for name, part in value.items()
        )


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _has_type(value: object, named: object) -> bool:
    names = [named] if isinstance(named, str) else _listed(named)
    return not names or any(_is_a(value, name) for name in names)


def _is_a(value: object, name: object) -> bool:
    if name == "integer":
        whole = isinstance(value, float) and value.is_integer()
        return (isinstance(value, int) and not isinstance(value, bool)) or whole
    if not isinstance(name, str) or name not in _TYPES:
        return True
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _is_listed(value: object, schema: Mapping[str, Any]) -> bool:
    allowed = schema.get("enum")
    if isinstance(allowed, list) and not any(_equal(value, one) for one in allowed):
        return False
    return "const" not in schema or _equal(value, schema["const"])


def _equal(a: object, b: object) -> bool:
    """Equality of JSON, in which true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)
    return a == b


def _is_within(value: object, schema: Mapping[str, Any]) -> bool:
    """True if a number or the length of a text or a list is within its limits."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        limits = ("minimum", "maximum")
        above, below = _number(schema, "exclusiveMinimum"), _number(schema, "exclusiveMaximum")
        if (above is not None and value <= above) or (below is not None and value >= below):
            return False
        return _between(value, schema, *limits)
    if isinstance(value, str):
        return _between(len(value), schema, "minLength", "maxLength")
    if isinstance(value, list):
        return _between(len(value), schema, "minItems", "maxItems")
    return True


def _between(value: float, schema: Mapping[str, Any], least: str, most: str) -> bool:
    low, high = _number(schema, least), _number(schema, most)
    return (low is None or value >= low) and (high is None or value <= high)


def _number(schema: Mapping[str, Any], name: str) -> float | None:
    limit = schema.get(name)
    return limit if isinstance(limit, int | float) and not isinstance(limit, bool) else None
