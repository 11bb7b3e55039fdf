"""Calls beside the functions that may be called, and beside the question: what fits them."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from qguide.qnet.features.words import words_of
from qguide.qnet.types import History
from qguide.training.choosing.calls import Call, plain_name

_TOLD: Final = "Functions: "
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "integer": (int,),
    "int": (int,),
    "long": (int, str),
    "number": (int, float),
    "float": (int, float),
    "double": (int, float, str),
    "string": (str,),
    "boolean": (bool,),
    "bool": (bool,),
    "array": (list, tuple),
    "list": (list, tuple),
    "tuple": (list, tuple),
    "dict": (Mapping, dict),
    "object": (Mapping, dict),
}
_LIKE_NUMBERS: Final = re.compile(r"-?\d+(?:\.\d+)?")
_NUMBER_WORDS: Final = {
    "one": "1",
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "nine": "9",
    "ten": "10",
}


@dataclass(frozen=True, slots=True)
class DescribedFunction:
    """One function that may be called."""

    name: str
    words: frozenset[str]
    parameters: Mapping[str, Mapping[str, Any]]
    required: frozenset[str]


@dataclass(slots=True)
class CallFit:
    """The fit of calls to the functions and the question.

    Attributes:
        counts: of findings by name, such as "missing"; all but those of `COUNTED` are flaws.
    """

    counts: dict[str, float] = field(default_factory=dict)
    traits: list[str] = field(default_factory=list)

    def add(self, name: str, much: float = 1.0) -> None:
        """Count a finding."""
        self.counts[name] = self.counts.get(name, 0.0) + much


FLAWS: Final = ("unknown function", "missing", "unknown argument", "kind", "not allowed", "position")
COUNTED: Final = (
    "calls",
    "arguments",
    "optional",
    "texts",
    "texts said",
    "numbers",
    "numbers said",
    "inner kind",
    "repeated",
    "best function",
    "function words",
    "default",
    "nothing",
)


def functions_of(opening: History) -> tuple[DescribedFunction, ...]:
    """The functions that the first message tells; none where it tells none."""
    if not opening or not opening[0].content.startswith(_TOLD):
        return ()
    try:
        told = json.loads(opening[0].content.removeprefix(_TOLD))
    except ValueError:
        return ()
    listed = told if isinstance(told, list) else [told]
    return tuple(_function(one) for one in listed if isinstance(one, Mapping))


def _function(told: Mapping[str, Any]) -> DescribedFunction:
    schema = told.get("parameters") or {}
    given = schema.get("properties") or {}
    parameters = {str(name): one if isinstance(one, Mapping) else {} for name, one in given.items()}
    text = f"{told.get('name', '')} {told.get('description', '')}".replace("_", " ")
    return DescribedFunction(
        plain_name(str(told.get("name", ""))),
        frozenset(words_of(text.replace(".", " "))),
        parameters,
        frozenset(map(str, schema.get("required") or ())),
    )


class AskedQuestion:
    """A question as its words, its numbers and its text."""

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.lower().split())
        self.words = frozenset(words_of(text.replace("_", " ")))
        numbers = {f"{float(n):g}" for n in _LIKE_NUMBERS.findall(text.replace(",", ""))}
        spoken = {_NUMBER_WORDS[word] for word in self.words if word in _NUMBER_WORDS}
        self.numbers = numbers | spoken
        if "%" in text or "percent" in text:
            self.numbers |= {f"{float(n) / 100:g}" for n in numbers}


def fit_of(calls: Sequence[Call], functions: Sequence[DescribedFunction], asked: AskedQuestion) -> CallFit:
    """Findings on some calls."""
    found = CallFit()
    known = {function.name: function for function in functions}
    likely = [function.name for function in sorted(functions, key=lambda f: -_shared(f, asked))]
    keys = [call.key for call in calls]
    found.add("repeated", len(keys) - len(set(keys)))
    for call in calls:
        found.add("calls")
        function = known.get(call.name) or known.get(call.name.rpartition("_")[2])
        if function is None:
            found.add("unknown function")
            continue
        found.add("best function", 1.0 / (1 + likely.index(function.name)))
        found.add("function words", _shared(function, asked))
        found.add("missing", len(function.required - set(call.arguments)))
        for name, value in call.arguments.items():
            _check(found, function, name, value, asked)
    return found


def _shared(function: DescribedFunction, asked: AskedQuestion) -> float:
    return len(function.words & asked.words) / math.sqrt(1 + len(function.words))


def _check(found: CallFit, function: DescribedFunction, name: str, value: Any, asked: AskedQuestion) -> None:
    found.add("arguments")
    schema = function.parameters.get(name)
    if schema is None:
        found.add("position" if name.isdigit() else "unknown argument")
        return
    if name not in function.required:
        found.add("optional")
        found.traits.append(f"optional {_shape(value)}")
    wanted = str(schema.get("type", "")).lower()
    kinds = _KINDS.get(wanted, ())
    if kinds and not (isinstance(value, kinds) and (wanted[:4] == "bool" or value is not True)):
        found.add("kind")
    inner = schema.get("items")
    below = str(inner.get("type", "")).lower() if isinstance(inner, Mapping) else ""
    if below and isinstance(value, list | tuple):
        found.add("inner kind", any(not isinstance(v, _KINDS.get(below, (object,))) for v in value))
    kind = f"{wanted}/{below}"
    found.traits.append(f"{kind} {_shape(value)}")
    allowed = schema.get("enum")
    if isinstance(allowed, list) and isinstance(value, str | int | float):
        found.add("not allowed", value not in allowed)
    description = str(schema.get("description", ""))
    if name not in function.required:
        found.add("default", _plain_text(value) in description.lower())
    for word in words_of(description)[:14]:
        found.traits.append(f"told {word} {_shape(value)}")
    for leaf in _leaves(value):
        _compare(found, leaf, asked)


def _compare(found: CallFit, leaf: Any, asked: AskedQuestion) -> None:
    """Note if a value was said in the question."""
    if isinstance(leaf, bool) or leaf is None:
        found.add("nothing", leaf is None)
    elif isinstance(leaf, int | float):
        found.add("numbers")
        found.add("numbers said", f"{float(leaf):g}" in asked.numbers)
    elif not leaf.strip():
        found.add("nothing")
    else:
        found.add("texts")
        text = " ".join(leaf.lower().split())
        said = 1.0 if text in asked.text else 0.0
        words = words_of(text.replace("_", " "))
        share = sum(word in asked.words for word in words) / max(1, len(words))
        found.add("texts said", 0.5 * said + 0.5 * share)


def _plain_text(value: Any) -> str:
    return str(value).lower() if not isinstance(value, list | tuple | Mapping) else "\0"


def _leaves(value: Any) -> Iterator[Any]:
    match value:
        case Mapping():
            for inner in value.values():
                yield from _leaves(inner)
        case list() | tuple() | set():
            for inner in value:
                yield from _leaves(inner)
        case bool() | int() | float() | str() | None:
            yield value
        case _:
            yield str(value)


def _shape(value: Any) -> str:
    """The kind of a value and, of a text, its form: letters, digits and signs, runs as one."""
    match value:
        case str():
            form = re.sub(r"[A-Z]+", "A", re.sub(r"[a-z]+", "a", re.sub(r"\d+", "9", value[:40])))
            return re.sub(r"(?:A?a[ _]?)+", "w", re.sub(r"\s+", " ", form))[:12]
        case list() | tuple():
            return f"[{_shape(value[0])}]" if value else "[]"
        case Mapping():
            return "{}"
    return type(value).__name__
