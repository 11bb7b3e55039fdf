"""HotPotQA's questions: each with its paragraphs, of which two or more hold the answer.

Generated ones need no data: each seed has a small world of people, the towns where they were born,
and the rivers and countries of the towns. A question needs two pages of it; the others distract.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from pydantic import AliasChoices, BaseModel, Field, TypeAdapter

from qguide.qnet.errors import ConfigError
from qguide.training.environment import Task
from qguide.training.environments.support.benchmark_files import read_entries


@dataclass(frozen=True, slots=True)
class Paragraph:
    """The first paragraph of a Wikipedia page, in sentences."""

    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        kind: "bridge" or "comparison", and the level: easy, medium or hard.
        supporting: titles of the paragraphs that hold the answer, in the order of their facts.
    """

    id: str
    text: str
    answer: str
    kind: str
    paragraphs: tuple[Paragraph, ...]
    supporting: tuple[str, ...]

    @property
    def task(self) -> Task:
        """The task as the jobs know it."""
        return Task(self.id, self.kind, self.id)


class _QuestionEntry(BaseModel, frozen=True, extra="ignore"):
    """One entry of a file, under the names of the benchmark's distractor setting."""

    id: str = Field(validation_alias=AliasChoices("_id", "id"))
    question: str
    answer: str
    type: str
    level: str
    supporting_facts: tuple[tuple[str, int], ...]
    context: tuple[tuple[str, tuple[str, ...]], ...] = Field(min_length=1)


def read_questions(path: Path) -> list[Question]:
    """The questions of a JSON file in the benchmark's format, maybe compressed (.xz)."""
    wanted = "a file of HotPotQA's questions with their paragraphs (the distractor setting)"
    entries = read_entries(path, "questions", TypeAdapter(list[_QuestionEntry]), wanted)
    questions = [
        Question(
            id=entry.id,
            text=entry.question.strip(),
            answer=entry.answer.strip(),
            kind=f"{entry.type}-{entry.level}",
            paragraphs=tuple(Paragraph(title, sentences) for title, sentences in entry.context),
            supporting=tuple(dict.fromkeys(title for title, _ in entry.supporting_facts)),
        )
        for entry in entries
    ]
    _require_distinct([question.id for question in questions], path)
    return questions


def _require_distinct(ids: Sequence[str], path: Path) -> None:
    if len(set(ids)) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise ConfigError(f"questions = {path}: id {twice!r} is there twice; name each once")


_FIRST_NAMES: Final = ("Adele", "Bruno", "Clara", "Dario", "Edith", "Felix", "Greta", "Hugo")
_LAST_NAMES: Final = ("Alder", "Birch", "Cedar", "Hazel", "Linden", "Maple", "Rowan", "Willow")
_TOWNS: Final = ("Altmar", "Brenford", "Calder", "Dunmore", "Elvas", "Farrow", "Glenby", "Harwick")
_RIVERS: Final = ("Isen", "Jarl", "Kell", "Lorne", "Mirra", "Nore", "Orla", "Pell")
_COUNTRIES: Final = ("Arland", "Borovia", "Castora", "Delmark")
_TRADES: Final = ("painter", "chemist", "composer", "carpenter", "botanist")
_LAST_NAME_ENDINGS: Final = ("", "man", "ton", "field", "well", "wood", "stone", "ridge")
_TOWN_ENDINGS: Final = ("", " Bridge", " Cross", " Green", " Heath", " Mills", " Park", " Vale")
NAME_SETS: Final = len(_LAST_NAME_ENDINGS)
"""Number of sets of names. No two have a person or a town in common."""

_PEOPLE: Final = 6
_TOWN_PAGES: Final = 4


@dataclass(frozen=True, slots=True)
class _Town:
    name: str
    river: str
    country: str

    @property
    def page(self) -> Paragraph:
        return Paragraph(
            self.name, (f"{self.name} is a town in {self.country}.", f" It lies on the river {self.river}.")
        )


@dataclass(frozen=True, slots=True)
class _Person:
    name: str
    trade: str
    year: int
    town: _Town

    @property
    def page(self) -> Paragraph:
        last = self.name.split()[1]
        return Paragraph(
            self.name,
            (
                f"{self.name} (born {self.year}) is a {self.trade}.",
                f" {last} was born in {self.town.name}.",
                f" {last} has worked as a {self.trade} for many years.",
            ),
        )


_Ask = Callable[[_Person, _Person], tuple[str, str, str, tuple[str, str]]]
"""From two people: the kind, the question, the answer, and the titles that hold it."""


def _river(one: _Person, _: _Person) -> tuple[str, str, str, tuple[str, str]]:
    text = f"On which river lies the town where {one.name} was born?"
    return "bridge-easy", text, one.town.river, (one.name, one.town.name)


def _country(one: _Person, _: _Person) -> tuple[str, str, str, tuple[str, str]]:
    text = f"In which country was the {one.trade} {one.name} born?"
    return "bridge-medium", text, one.town.country, (one.name, one.town.name)


def _older(one: _Person, other: _Person) -> tuple[str, str, str, tuple[str, str]]:
    text = f"Who was born first, {one.name} or {other.name}?"
    older = one if one.year < other.year else other
    return "comparison-medium", text, older.name, (one.name, other.name)


def _same_trade(one: _Person, other: _Person) -> tuple[str, str, str, tuple[str, str]]:
    text = f"Do {one.name} and {other.name} have the same profession?"
    answer = "yes" if one.trade == other.trade else "no"
    return "comparison-hard", text, answer, (one.name, other.name)


_QUESTIONS: Final[tuple[_Ask, ...]] = (_river, _country, _older, _same_trade)


def generated_question(seed: int, name_set: int = 0) -> Question:
    """The question of any integer; consecutive seeds ask in different forms."""
    rng = Random(seed)
    rivers = rng.sample(_RIVERS, k=_TOWN_PAGES)
    towns = [
        _Town(name + _TOWN_ENDINGS[name_set], river, rng.choice(_COUNTRIES))
        for name, river in zip(rng.sample(_TOWNS, k=_TOWN_PAGES), rivers, strict=True)
    ]
    ending = _LAST_NAME_ENDINGS[name_set]
    last_names = [name + ending for name in rng.sample(_LAST_NAMES, k=_PEOPLE)]
    years = rng.sample(range(1900, 1990), k=_PEOPLE)  # distinct: one of two people is older
    people = [
        _Person(f"{rng.choice(_FIRST_NAMES)} {last}", rng.choice(_TRADES), year, rng.choice(towns))
        for last, year in zip(last_names, years, strict=True)
    ]
    kind, text, answer, supporting = _QUESTIONS[seed % len(_QUESTIONS)](people[0], people[1])
    pages = [*(person.page for person in people), *(town.page for town in towns)]
    rng.shuffle(pages)
    return Question(f"generated/{seed}", text, answer, kind, tuple(pages), supporting)
