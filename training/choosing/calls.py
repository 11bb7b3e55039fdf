"""Tool calls as values, whatever way a model wrote them: as calls, as Python or as JSON.

A text of which no call can be read has none. The share that can be read is printed, because a
parser that fails often makes a Q model look good for telling syntax.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qguide.qnet.types import Message

_FENCE: Final = re.compile(r"```[a-z]*|</?tool_call>|<\|[a-z_]+\|>|<functioncall>")
_NAMED_JSON: Final = re.compile(r"([A-Za-z_][\w.]*)\s*\n\s*(\{.*\})", re.S)
_START: Final = re.compile(r"[A-Za-z_][\w.]*\s*\(")
_MOST_CHARACTERS: Final = 6_000
_NAMES: Final = ("name", "function", "function_name", "tool_name")
_ARGUMENTS: Final = ("arguments", "parameters", "params", "args", "kwargs")


@dataclass(frozen=True, slots=True)
class Call:
    """One call.

    Attributes:
        name: of the function, "." and "_" being one.
        arguments: positional ones are named "0", "1" and so on.
    """

    name: str
    arguments: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Equal for calls of equal effect: the order of arguments and 1 or 1.0 do not matter."""
        given = sorted((name, _plain(value)) for name, value in self.arguments.items())
        return f"{self.name}({json.dumps(given, default=str)})"


def calls_of(reply: Message) -> tuple[Call, ...]:
    """The calls of a reply; none where none can be read."""
    if reply.tool_calls:
        return tuple(Call(plain_name(call.name), _arguments(call.arguments)) for call in reply.tool_calls)
    text = _FENCE.sub("\n", reply.content[:_MOST_CHARACTERS]).replace("\\_", "_").strip()
    for read in (_read_json, _read_lines, _read_python, _read_named_json, _read_inside):
        if found := tuple(read(text)):
            return found
    return ()


def plain_name(name: str) -> str:
    """The name of a function as some models have to write it."""
    return name.strip().replace(".", "_").replace("-", "_")


def _plain(value: Any) -> Any:
    """A value without differences that mean nothing."""
    match value:
        case bool() | None:
            return value
        case int() | float():
            return float(value)
        case str():
            return " ".join(value.split()).lower()
        case Mapping():
            return sorted((str(k), _plain(v)) for k, v in value.items())
        case list() | tuple():
            return [_plain(one) for one in value]
    return str(value)


def _arguments(given: Any) -> Mapping[str, Any]:
    """The arguments of a call; of what is no object, one that is named "0"."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return {"0": given} if given.strip() else {}
    return given if isinstance(given, Mapping) else {"0": given}


def _read_json(text: str) -> Iterator[Call]:
    decoder, place = json.JSONDecoder(), 0
    if not text.startswith(("{", "[")):
        return
    while place < len(text):
        try:
            value, place = decoder.raw_decode(text, place)
        except ValueError:
            return
        yield from _calls_in(value)
        while place < len(text) and text[place] in " \n\t,;":
            place += 1


def _read_lines(text: str) -> Iterator[Call]:
    for line in text.splitlines():
        if line.strip().startswith("{"):
            try:
                yield from _calls_in(ast.literal_eval(line.strip()))
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue


def _calls_in(value: Any) -> Iterator[Call]:
    """The calls of a JSON value: {"name": …, "arguments": …}, {name: arguments}, or lists."""
    if isinstance(value, list):
        for one in value:
            yield from _calls_in(one)
    elif isinstance(value, Mapping):
        if isinstance(inner := value.get("tool_calls"), list):
            yield from _calls_in(inner)
            return
        if isinstance(inner := value.get("function"), Mapping):
            yield from _calls_in(inner)
            return
        name = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), None)
        if name is not None:
            given: Any = next((value[key] for key in _ARGUMENTS if key in value), {})
            yield Call(plain_name(name), _arguments(given))
        else:
            for key, given in value.items():
                if isinstance(given, Mapping):
                    yield Call(plain_name(str(key)), given)


def _read_python(text: str) -> Iterator[Call]:
    """An expression of calls: f(a=1), [f(a=1), g()], or several divided by lines or ";"."""
    for part in (text, f"[{text}]", f"[{text.replace(';', ',').rstrip(', ')}]"):
        try:
            tree = ast.parse(part.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if found := list(_calls_of_nodes([tree])):
            yield from found
            return


def _calls_of_nodes(nodes: Sequence[ast.expr]) -> Iterator[Call]:
    for node in nodes:
        match node:
            case ast.List(elts=inner) | ast.Tuple(elts=inner):
                yield from _calls_of_nodes(inner)
            case ast.Constant(value=str() as text):
                yield from _read_python(text) if _START.match(text.strip()) else ()
            case ast.Dict():
                yield from _calls_in(_value(node))
            case ast.Call():
                yield _call_of(node)


def _call_of(node: ast.Call) -> Call:
    given: dict[str, Any] = {str(i): _value(arg) for i, arg in enumerate(node.args)}
    given |= {word.arg or "**": _value(word.value) for word in node.keywords}
    only = given.get("0")
    if len(given) == 1 and isinstance(only, Mapping):
        given = dict(only)
    return Call(plain_name(ast.unparse(node.func)), given)


def _value(node: ast.expr) -> Any:
    """The value of an expression; of what is no literal its source."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ast.unparse(node)


def _read_named_json(text: str) -> Iterator[Call]:
    if found := _NAMED_JSON.fullmatch(text):
        try:
            yield Call(plain_name(found[1]), _arguments(json.loads(found[2])))
        except ValueError:
            return


def _read_inside(text: str) -> Iterator[Call]:
    """Calls inside other text: the first list of them, the first that can be read otherwise."""
    for opening in re.finditer(r"\[\s*[\w'\"{]", text):
        if (end := _closed(text, opening.start())) and (found := list(_read_python(text[opening.start() : end]))):
            yield from found
            return
    for opening in re.finditer(r"\{\s*[\"']", text):
        if (end := _closed(text, opening.start())) and (found := list(_read_json(text[opening.start() : end]))):
            yield from found
            return
    for start in _START.finditer(text):
        if (end := _closed(text, start.end() - 1)) and (found := list(_read_python(text[start.start() : end]))):
            yield from found
            return


def _closed(text: str, start: int) -> int:
    """Place behind the bracket that closes the one at `start`; 0 if none does."""
    depth, quote = 0, ""
    for i in range(start, len(text)):
        sign = text[i]
        if quote:
            quote = "" if sign == quote and text[i - 1] != "\\" else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
            if depth == 0:
                return i + 1
    return 0
