"""HotPotQA's questions: each with its paragraphs, of which two or more hold the answer."""

import json
import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from qguide.qnet.errors import ConfigError
from qguide.training.environment import Task


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
        paragraphs: those that can be searched.
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


class _QuestionEntry(BaseModel):
    """One entry of a file, under the names of the benchmark's distractor setting."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str = Field(validation_alias=AliasChoices("_id", "id"))
    question: str
    answer: str
    type: str
    level: str
    supporting_facts: tuple[tuple[str, int], ...]
    context: tuple[tuple[str, tuple[str, ...]], ...] = Field(min_length=1)


def read_questions(path: Path) -> list[Question]:
    """The questions of a JSON file in the benchmark's format, maybe compressed (.xz)."""
    try:
        text = path.read_bytes()
        entries = TypeAdapter(list[_QuestionEntry]).validate_python(
            json.loads(lzma.decompress(text) if path.suffix == ".xz" else text)
        )
    except OSError as error:
        raise ConfigError(
            f"questions = {path}: {error.strerror}; name a file of questions"
        ) from error
    except (ValidationError, ValueError, lzma.LZMAError) as error:
        raise ConfigError(
            f"questions = {path}: {_first_mistake(error)}; name a list of HotPotQA's questions "
            "with their paragraphs (the distractor setting)"
        ) from error
    questions = [_question(entry) for entry in entries]
    _require_distinct([question.id for question in questions], path)
    return questions


def _question(entry: _QuestionEntry) -> Question:
    return Question(
        id=entry.id,
        text=entry.question.strip(),
        answer=entry.answer.strip(),
        kind=f"{entry.type}-{entry.level}",
        paragraphs=tuple(Paragraph(title, sentences) for title, sentences in entry.context),
        supporting=tuple(dict.fromkeys(title for title, _ in entry.supporting_facts)),
    )


def _first_mistake(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _require_distinct(ids: Sequence[str], path: Path) -> None:
    if len(set(ids)) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise ConfigError(f"questions = {path}: id {twice!r} is there twice; name each once")
