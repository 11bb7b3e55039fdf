"""`match=` pins what an error must say: values, names, files, limits, commands. Its prose may change."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

LITERAL = re.compile(r"""match=[rf]{0,2}(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""")

FACT = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|\b(?:accelerate|docker|make|pip|qguide) [\w. -]+|\\[A-Za-z]""")
"""Words that are facts: a value in quotes, a command, an escape of regular expressions."""

PROSE = re.compile(
    r"(?<![\w`./=-])"
    r"(?!\w+ (?:is|was|to) (?:[\d{\[(<]|true|false|None))(?!(?:is|was|to) (?:true|false))"  # a name and its value
    r"[a-z]{2,} [a-z]{2,}(?![\w=])(?![./-]\w)"
)
"""Two plain words in a row."""


def prose(pattern: str) -> str:
    """The first two plain words of a pattern that follow each other; "" if there are none."""
    found = PROSE.search(FACT.sub("<>", pattern))
    return found[0] if found else ""


def test_facts_are_told_from_prose() -> None:
    for fact in (
        "^tau is 'x', .* 0 to 1",
        r"\bq: .*`qguide label`",
        "no_such: .*--set",
        r"a\.json, line 3: .*pip install x",
    ):
        assert prose(fact) == "", fact
    assert prose("reward 2, which cannot be") == "which cannot"


def test_errors_are_matched_by_facts() -> None:
    wordy = [
        f"{path.relative_to(ROOT)}: {pattern!r} pins {found!r}"
        for folder in ("tests", "clients/python/tests")
        for path in sorted((ROOT / folder).rglob("test_*.py"))
        if path != Path(__file__)
        for double, single in LITERAL.findall(path.read_text(encoding="utf-8"))
        if (found := prose(pattern := double or single))
    ]
    assert not wordy, "match values, names and remedies, with `.*` between them:\n" + "\n".join(wordy)
