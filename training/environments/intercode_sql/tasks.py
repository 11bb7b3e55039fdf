"""InterCode-SQL's tasks: a question, the query that answers it, and the database's tables.

Generated ones ask about a small library, so that tests and demos need no data.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from pydantic import TypeAdapter

from qguide.qnet.records import Row
from qguide.training.environment import Task
from qguide.training.environments.support.benchmark_files import read_entries


@dataclass(frozen=True, slots=True)
class SqlTask:
    """One question.

    Attributes:
        id: "DATABASE/NUMBER".
        database: name of the database, as queries may write it before a table's.
        gold: the query whose result is the answer.
        hardness: Spider's class of `gold`: easy, medium, hard or extra.
        tables: columns of each table, as the benchmark tells them to an agent.
    """

    id: str
    database: str
    question: str
    gold: str
    hardness: str
    tables: Mapping[str, tuple[str, ...]]

    @property
    def task(self) -> Task:
        """The task as the jobs know it."""
        return Task(self.id, self.hardness, self.database)


class _TaskEntry(Row):
    """One entry of the benchmark's file, under its names; its number is its place there, if it states none."""

    task_id: int | None = None
    db: str
    query: str
    gold: str
    hardness: str
    db_tables: dict[str, tuple[str, ...]]


def read_tasks(path: Path) -> list[SqlTask]:
    """The tasks of a file in the benchmark's format: a JSON list."""
    kind = TypeAdapter(list[_TaskEntry])
    entries = read_entries(path, "tasks", kind, "a file with a list of InterCode-SQL's tasks")
    return [
        SqlTask(
            id=task_id_of(entry.db, place if entry.task_id is None else entry.task_id),
            database=entry.db,
            question=entry.query,
            gold=entry.gold,
            hardness=entry.hardness,
            tables=entry.db_tables,
        )
        for place, entry in enumerate(entries)
    ]


def task_id_of(database: str, number: int) -> str:
    """Id of the benchmark's task of that number."""
    return f"{database}/{number}"


def describe_task(task: SqlTask, *, show_schema: bool) -> str:
    """The first observation: the question and, where it is shown, the schema."""
    lines = [f"Database: {task.database}"]
    if show_schema:
        lines += [f"{name}({', '.join(columns)})" for name, columns in task.tables.items()]
    return "\n".join([*lines, "", f"Question: {task.question}"])


DATABASE: Final = "library"
TABLES: Final = {
    "author": ("author_id", "name", "country"),
    "book": ("book_id", "title", "author_id", "year", "copies"),
    "loan": ("loan_id", "book_id", "member", "days"),
}
_SCHEMA: Final = """
CREATE TABLE library.author (author_id INTEGER PRIMARY KEY, name TEXT, country TEXT);
CREATE TABLE library.book (
    book_id INTEGER PRIMARY KEY, title TEXT, author_id INTEGER, year INTEGER, copies INTEGER
);
CREATE TABLE library.loan (
    loan_id INTEGER PRIMARY KEY, book_id INTEGER, member TEXT, days INTEGER
);
"""
_NAMES: Final = ("Adams", "Brook", "Castro", "Duarte", "Endo", "Farah", "Grieg", "Haddad")
_COUNTRIES: Final = ("Chile", "Ghana", "Japan", "Norway")
_TITLES: Final = ("Harbour", "Lantern", "Meadow", "Orchard", "Quarry", "River", "Summit", "Tide")
_MEMBERS: Final = ("Ines", "Jonas", "Kofi", "Lena", "Mei")

_Question = Callable[[Random], tuple[str, str, str]]


def _count_by_country(rng: Random) -> tuple[str, str, str]:
    country = rng.choice(_COUNTRIES)
    return ("easy", f"How many authors are from {country}?", f"SELECT count(*) FROM author WHERE country = '{country}'")


def _titles_after_year(rng: Random) -> tuple[str, str, str]:
    year = rng.randint(1960, 2000)
    return (
        "easy",
        f"List the titles of the books published after {year}, oldest first.",
        f"SELECT title FROM book WHERE year > {year} ORDER BY year, title",
    )


def _average_copies(_: Random) -> tuple[str, str, str]:
    return (
        "medium",
        "For each country, how many copies do the books of its authors have on average?",
        "SELECT a.country, avg(b.copies) FROM author AS a JOIN book AS b "
        "ON a.author_id = b.author_id GROUP BY a.country ORDER BY a.country",
    )


def _never_lent(_: Random) -> tuple[str, str, str]:
    return (
        "hard",
        "Which titles were never lent? Sort them by name.",
        "SELECT title FROM book WHERE book_id NOT IN (SELECT book_id FROM loan) ORDER BY title",
    )


def _most_days(_: Random) -> tuple[str, str, str]:
    return (
        "extra",
        "Which member kept books for the most days altogether? Give the name and the days.",
        "SELECT member, sum(days) FROM loan GROUP BY member ORDER BY sum(days) DESC, member LIMIT 1",
    )


_QUESTIONS: Final[tuple[_Question, ...]] = (
    _count_by_country,
    _titles_after_year,
    _average_copies,
    _never_lent,
    _most_days,
)


def generated_task(seed: int) -> SqlTask:
    """The task of any integer; consecutive seeds use different question templates."""
    hardness, question, gold = _QUESTIONS[seed % len(_QUESTIONS)](Random(seed))
    return SqlTask(f"{DATABASE}/{seed}", DATABASE, question, gold, hardness, TABLES)


def library_script(seed: int) -> str:
    """Statements that make and fill the library of a seed."""
    rng = Random(f"library {seed}")
    authors = [(number, name, rng.choice(_COUNTRIES)) for number, name in enumerate(rng.sample(_NAMES, 6), start=1)]
    books = [
        (number, title, rng.randint(1, 6), rng.randint(1950, 2020), rng.randint(1, 5))
        for number, title in enumerate(rng.sample(_TITLES, 7), start=1)
    ]
    loans = [(number, rng.randint(1, 7), rng.choice(_MEMBERS), rng.randint(1, 30)) for number in range(1, 9)]
    return (
        f"{_SCHEMA}INSERT INTO library.author VALUES {_values(authors)};\n"
        f"INSERT INTO library.book VALUES {_values(books)};\n"
        f"INSERT INTO library.loan VALUES {_values(loans)};\n"
    )


def _values(records: Iterable[tuple[object, ...]]) -> str:
    # None of the words has a quote, so a tuple of Python reads as one of SQL.
    return ", ".join(map(repr, records))
