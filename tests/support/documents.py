"""Code blocks of the documentation, and the commands that a shell would run in one."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.serving import ROOT

_BLOCK: Final = re.compile(
    r"(?:^<!-- (?P<kind>[a-z ]+): (?P<said>[^>]*?) -->\n+)?"
    r"^```(?P<language>\S*)\n(?P<text>.*?)^```",
    re.DOTALL | re.MULTILINE,
)
_AT_THE_ROOT: Final = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
_BESIDE: Final = ("clients/*/README.md", "skills/*/SKILL.md")
_PROGRAMS: Final = (
    *(
        "qguide",
        ".venv/bin/qguide",
        "accelerate",
        "make",
        "docker",
        "helm",
        "kubectl",
        "vllm",
        "curl",
        "cp",
        "npm",
        "git",
        "cd",
        "python",
        "python3",
        "pip",
        ".venv/bin/pip",
    ),
)
_RECORDER: Final = """
record() {
    for variable in $(compgen -A variable QGUIDE_); do
        printf '%s=%s\\0' "$variable" "${!variable}" >> record
    done
    printf '%s\\0' "--$#" "$@" >> record
}
"""
"""A shell function in place of each program: it notes its variables and arguments."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block.

    Attributes:
        page: path below the repository's root.
        kind: the word of the comment before it: "not run", "schema", "row" …; "" without one.
        said: what that comment says.
    """

    page: str
    language: str
    text: str
    kind: str = ""
    said: str = ""

    @property
    def is_run(self) -> bool:
        """True if the tests run the block as it is."""
        return self.language in ("sh", "python") and self.kind != "not run"


@dataclass(frozen=True, slots=True)
class Command:
    """A command as a shell would run it: program, arguments and QGUIDE_… variables."""

    program: str
    arguments: Sequence[str]
    variables: Mapping[str, str]


def pages() -> list[str]:
    """Every page that is written by hand."""
    beside = [path for pattern in _BESIDE for path in ROOT.glob(pattern)]
    found = [*(ROOT / "docs").rglob("*.md"), *beside]
    names = [str(path.relative_to(ROOT)) for path in found]
    return [*_AT_THE_ROOT, *sorted(n for n in names if not n.startswith("docs/reference/"))]


def blocks_of(page: str) -> list[Block]:
    """Its fenced blocks, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(page, found["language"], found["text"], found["kind"] or "", found["said"] or "")
        for found in _BLOCK.finditer(text)
    ]


def commands_of(block: Block, folder: Path) -> Iterator[Command]:
    """The commands of a shell block, expanded by a real shell in which none of them does anything.

    Args:
        folder: an empty one, in which the shell runs.

    Raises:
        CalledProcessError: the block is no valid shell, or runs a program that is not expected.
    """
    functions = "".join(f'{name}() {{ record {name} "$@"; }}\n' for name in _PROGRAMS)
    record = folder / "record"
    record.touch()
    subprocess.run(
        ["/bin/bash", "-euc", f"{_RECORDER}{functions}{block.text}"],
        cwd=folder,
        env={"PATH": "/nowhere", "KEY": "key"},
        capture_output=True,
        text=True,
        check=True,
    )
    words = iter(record.read_text().split("\0")[:-1])
    variables: dict[str, str] = {}
    for word in words:
        if not word.startswith("--"):
            name, _, value = word.partition("=")
            variables[name] = value
            continue
        program, *arguments = (next(words) for _ in range(int(word[2:])))
        yield Command(program.rpartition("/")[2], arguments, variables)
        variables = {}


def run_shell(text: str, folder: Path) -> str:
    """Output of a block, run as it is with the console script of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "-euc", text],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
