"""Words of texts and actions, and the part of a long text that concerns a task."""

import json
import re
from ast import literal_eval
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from itertools import combinations, pairwise
from typing import Any, Final, TypeVar

from qguide.qnet.chat_messages import json_object, message_key
from qguide.qnet.types import Message, ToolCall

Told = TypeVar("Told")

_WORD: Final = re.compile(r"\w+(?:[-'.:/]\w+)*")
_NAME: Final = re.compile(r"[/_]")  # signs of a path or an identifier, which a word of a language has not
_PART: Final = re.compile(r"[^\W\d_]+")
_MOST_NAMED: Final = 12
_NUMBER: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?")
_SIGNED: Final = re.compile(
    r"(?<![\w.,\[-])"  # begins where a word does, and no list of numbers
    r"[-\u2212]?(?:\.[0-9]{1,15}|(?:[0-9]{1,3}(?:,[0-9]{3}){1,4}|[0-9]{1,15})(?:\.[0-9]{1,15})?)"
    r"(?!,?[0-9]|[-'.:/]?\w)"  # and ends where one does
)
"""A number with its sign, its separators of thousands, or nothing before its decimal point."""
_WORD_OR_NUMBER: Final = re.compile(f"{_SIGNED.pattern}|{_WORD.pattern}")
_SENTENCE_END: Final = re.compile(r"[.!?;]\s|\n")
_CLAUSE_WORDS: Final = 3  # fewest behind a colon that are a clause of their own
ANY_WORD: Final = "*"
ANY_NUMBER: Final = "#"
VARYING: Final = (ANY_WORD, ANY_NUMBER)
"""Marks in a template where its sentences differ; no word is written so."""
_LETTER: Final = re.compile(r"[^\W\d_]")
_JSON: Final = ("{", "[")
_LISTED: Final = re.compile(r"^[ \t]*[\[(]?(\d{1,3}|[A-Za-z])[\]).:]+[ \t]+(\S.*)$", re.MULTILINE)
_CHOSEN: Final = re.compile(r"(?:(?:option|choice) )?[\[(]?(\d{1,3}|[a-z])(?:[\]).:]+(?:\s.*)?)?", re.IGNORECASE)
"""A line of a list of choices, and a reply that names one."""
_MOST_CHARACTERS: Final = 8_192  # read of one text, so that neither the work of a request nor the caches grow with it
_CACHED_TEXTS: Final = 512


@dataclass(frozen=True, slots=True)
class ActionWords:
    """A reply as what acts in it: a verb, and words after it.

    Attributes:
        key: all of it; equal for replies of one effect, whatever was thought before.
        verb: a tool's name, or the first word of a text.
        places: of each further word, what it is an argument of; "" in a text.
    """

    key: str
    verb: str
    places: tuple[str, ...]
    words: tuple[str, ...]

    def without(self, held: Collection[str]) -> str:
        """The action less words that a sentence has: of a column and a method, the method."""
        words = zip(self.places, self.words, strict=True)
        return " ".join((self.verb, *(f"{place}={word}" for place, word in words if word not in held)))


def read_part(text: str) -> str:
    """The beginning and the end of a text that is longer than features read."""
    half = _MOST_CHARACTERS // 2
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:half]}\n{text[-half:]}"


def _read_in_part(read: Callable[[str], Told]) -> Callable[[str], Told]:
    """The function of a part of each text, and remembered by that: a cache of whole texts would keep all of them."""
    remembered = lru_cache(_CACHED_TEXTS)(read)

    @wraps(read)
    def part_read(text: str) -> Told:
        return remembered(read_part(text))

    return part_read


@_read_in_part
def clauses_of(text: str) -> tuple[tuple[str, ...], ...]:
    """The words of each sentence or line, and apart from them those behind a colon.

    Of "Letter: The line is dead again." these are "letter" and "the line is dead again". A longer
    beginning, such as that of a line of a log, keeps the first word behind the colon: who says
    "error" is told there. Of a text that is JSON each object is a clause of its own fields.
    """
    if text.startswith(_JSON) and (told := _json_clauses(text)) is not None:
        return told
    found: list[tuple[str, ...]] = []
    for sentence in _SENTENCE_END.split(text.lower()):
        head, _, tail = sentence.partition(": ")
        said = tuple(_WORD.findall(tail))
        if len(said) >= _CLAUSE_WORDS:
            before = tuple(_WORD.findall(head))
            found += [before if len(before) < _CLAUSE_WORDS else (*before, said[0]), said]
        else:
            found.append(tuple(_WORD.findall(sentence)))
    return tuple(words for words in found if words)


def _json_clauses(text: str) -> tuple[tuple[str, ...], ...] | None:
    """Clauses of objects or lists, as JSON or as Python writes them; None for any other text."""
    for read in (json.loads, literal_eval):
        try:
            return tuple(_objects(read(text)))
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):  # or nested without end
            continue
    return None


def _objects(told: Any, name: str = "") -> Iterator[tuple[str, ...]]:
    """The words of each object's own fields, behind its name."""
    if isinstance(told, dict):
        own = {key: value for key, value in told.items() if not isinstance(value, dict | list)}
        if words := _WORD.findall(" ".join(f"{key} {_text(value)}" for key, value in own.items()).lower()):
            yield (*_WORD.findall(name.lower()), *words)
        for key, value in told.items():
            if key not in own:
                yield from _objects(value, str(key))
    elif isinstance(told, list):
        for one in told:
            yield from _objects(one, name)
    elif words := _WORD.findall(f"{name} {_text(told)}".lower()):
        yield tuple(words)


def without_numbers(clause: tuple[str, ...]) -> tuple[str, ...]:
    """A clause as the first template: its numbers vary, and so do dates and times."""
    return tuple(word if _LETTER.search(word) else ANY_NUMBER for word in clause)


def patterns_in(template: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Each place of a word that is told, and the template as it would be if that varied, too.

    At least half of the words have to be told then.
    """
    told = sum(word not in VARYING for word in template) - 1
    if 2 * told >= len(template):
        for i, word in enumerate(template):
            if word not in VARYING:
                yield i, " ".join((*template[:i], ANY_WORD, *template[i + 1 :]))


def generalised(template: tuple[str, ...], varies: Callable[[str], bool]) -> tuple[str, ...]:
    """A template with `ANY_WORD` in each place whose pattern tells that its word varies."""
    places = {i for i, pattern in patterns_in(template) if varies(pattern)}
    return tuple(ANY_WORD if i in places else word for i, word in enumerate(template))


def is_number(word: str) -> bool:
    """True for a word that is a plain number."""
    return _NUMBER.fullmatch(word) is not None


@lru_cache(_CACHED_TEXTS)
def numbers_of(text: str) -> tuple[tuple[str, float], ...]:
    """The different numbers of a text, each with the word before it in its sentence.

    Of "the heat is 63" that is the heat.
    """
    found: list[tuple[str, float]] = []
    for sentence in _SENTENCE_END.split(read_part(text)):
        words = [word for word in _WORD_OR_NUMBER.findall(sentence.lower()) if word not in ("is", "are")]
        for before, word in pairwise(words):
            if (number := _value(word)) is not None and _value(before) is None:
                found.append((before, number))
    return tuple(dict.fromkeys(found))


def _value(word: str) -> float | None:
    if _SIGNED.fullmatch(word) is None:
        return None
    return float(word.replace(",", "").replace("\u2212", "-"))


@_read_in_part
def words_of(text: str) -> tuple[str, ...]:
    """The different words of a text in lower case, in the order of first appearance."""
    return tuple(dict.fromkeys(_WORD.findall(text.lower())))


@_read_in_part
def sentences_of(text: str) -> tuple[tuple[str, ...], ...]:
    """The words of each sentence or line of a text."""
    found = (tuple(_WORD.findall(part.lower())) for part in _SENTENCE_END.split(text))
    return tuple(words for words in found if words)


def focused(text: str, concern: Collection[str], *, most: int) -> tuple[str, ...]:
    """At most so many different words, those of the sentences first that share most with a concern.

    The words of one observation may be hundreds, of which a few sentences matter.
    """
    if len(words := words_of(text)) <= most:
        return words
    ordered = sorted(sentences_of(text), key=lambda own: -len(set(own) & set(concern)))
    return tuple(dict.fromkeys(word for own in ordered for word in own))[:most]


def surroundings(text: str, concern: Collection[str]) -> list[tuple[str, str]]:
    """Each word of a concern in a text, with a neighbour or the beginning of its sentence.

    Words around it that are of the concern, too, are left unnamed: so tasks are alike.
    """
    found: list[tuple[str, str]] = []
    for sentence in sentences_of(text):
        named = ["", *("*" if word in concern else word for word in sentence), ""]
        start = " ".join(named[1:3])
        for place, word in enumerate(sentence):
            if word in concern:
                before, after = named[place], named[place + 2]
                found += [(word, f"{before} _"), (word, f"_ {after}"), (word, f"{start} …")]
    return found


def action_words(reply: Message, seen: str = "") -> ActionWords:
    """The part of a reply that acts, as words; the number of a choice listed in what was `seen` is that choice."""
    if reply.tool_calls:
        named = [pair for call in reply.tool_calls for pair in _call_words(call)]
        first = reply.tool_calls[0].name.lower()
        places, words = zip(*named, strict=True) if named else ((), ())
        key = " ".join(f"{p}={w}" for p, w in named)
        verbs = "+".join(call.name.lower() for call in reply.tool_calls)
        return ActionWords(f"{verbs} {key}", verbs or first, places, words)
    text = message_key(reply)
    if (chosen := _CHOSEN.fullmatch(text)) is not None:
        text = listed_choices(seen).get(chosen[1].lower(), text)
    if (fields := _fields_of(text)) is not None:
        return fields
    said = _WORD.findall(read_part(text).lower())
    verb = said[0] if said else ""
    return ActionWords(" ".join(said), verb, ("",) * len(said[1:]), tuple(said[1:]))


@_read_in_part
def listed_choices(text: str) -> dict[str, str]:
    """The lines of a list of choices by their numbers or letters; none of a single one."""
    listed = {number.lower(): choice for number, choice in _LISTED.findall(text)}
    return listed if len(listed) > 1 else {}


def _fields_of(text: str) -> ActionWords | None:
    """A reply that is a JSON object, read as a call; None for any other text.

    Its verb is the field that names what is done.
    """
    if not text.startswith("{") or (fields := json_object(text)) is None:
        return None
    named = _named_words(fields)
    said = [next((i for i, (place, _) in enumerate(named) if place == name), -1) for name in _VERBS]
    first = next((i for i in said if i >= 0), -1)
    rest = [pair for i, pair in enumerate(named) if i != first]
    verb = named[first][1] if first >= 0 else ""
    places, words = zip(*rest, strict=True) if rest else ((), ())
    return ActionWords(" ".join((verb, *(f"{p}={w}" for p, w in rest))), verb, places, words)


def _call_words(call: ToolCall) -> list[tuple[str, str]]:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = call.arguments
    return _named_words(arguments if isinstance(arguments, dict) else {"": arguments})


def _named_words(arguments: Mapping[str, object]) -> list[tuple[str, str]]:
    return [
        (str(name).lower(), word)
        for name, value in sorted(arguments.items())
        for word in _WORD.findall(read_part(_text(value)).lower())
    ]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def named_parts(action: ActionWords) -> tuple[str, ...]:
    """Each part of the paths and identifiers of an action, with its other words, two by two.

    "inbox/cv_2041.pdf" as a whole is read once and never again; "cv" beside "people" is. Numbers
    are left out, and an action without such a word has none.
    """
    if not any(map(_NAME.search, action.words)):
        return ()
    parts = [
        f"{place}:{part}"
        for place, word in zip(action.places, action.words, strict=True)
        for part in (_PART.findall(word) if _NAME.search(word) else (word,))
    ]
    listed = list(dict.fromkeys(parts))[-_MOST_NAMED:]
    return tuple(" ".join(pair) for pair in combinations(listed, 2))


def relation(word: str, *, task: Collection[str], last: Collection[str], earlier: Collection[str]) -> str:
    """Place where a word of an action was read: the task, the last or an earlier observation.

    Names differ from task to task; where they come from does not.
    """
    if word in task:
        return "task"
    if word in last:
        return "last"
    return "earlier" if word in earlier else "new"


def skeleton(action: ActionWords, relations: Sequence[str]) -> str:
    """The action with each argument word replaced by its relation, equal neighbours merged."""
    parts: list[str] = []
    for place, known in zip(action.places, relations, strict=True):
        part = f"{place}:{known}"
        if not parts or parts[-1] != part:
            parts.append(part)
    return " ".join((action.verb, *parts[:_MOST_PARTS]))


_VERBS: Final = ("action", "tool", "tool_name", "name", "function", "command")
"""Fields of a JSON object that say what is done, the likeliest first."""

_MOST_PARTS: Final = 8
