"""Docstrings begin with a noun phrase or an imperative, which a search for the subject finds."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("benchmarks", "server", "qguide", "qnet", "training", "tools", "clients/python", "tests")
NOT_FIRST = {"What", "Who", "Whose", "Whether", "How", "Where", "That", "Which", "Why", "When"}


ANY_TEXT = re.compile(rf"""["']\s*(?:{"|".join(sorted(NOT_FIRST))})\b""")
"""A text that begins with such a word, be it a docstring or not: few modules have one and need to be parsed."""


def first_words(source: str) -> Iterator[tuple[int, str]]:
    """Line and first word of every docstring, those of attributes included."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if text.strip():
                yield node.lineno, text.split()[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_docstring_begins_with_a_question_word(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word} …"
        for path in sorted((ROOT / package).rglob("*.py"))
        if ANY_TEXT.search(source := path.read_text(encoding="utf-8"))
        for line, word in first_words(source)
        if word in NOT_FIRST
    ]
    assert found == [], "begin with a noun phrase or an imperative"


def test_docstrings_of_modules_functions_and_attributes_are_read() -> None:
    source = '"""Whose."""\nA = 1\n"""What it is."""\ndef f():\n    """Add."""\n'
    assert list(first_words(source)) == [(1, "Whose."), (3, "What"), (5, "Add.")]
