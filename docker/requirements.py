"""Requirements of an image, each file with its hash, from requirements.lock.

`python docker/requirements.py EXTRAS TORCH`, from the repository's root, prints it for
`pip install --no-deps --require-hashes`. EXTRAS are names in pyproject.toml, divided by commas, or
build-system. cu130 is the package index's own build of torch. With another TORCH, torch and its
CUDA libraries are left out, because they come from torch's index.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

CUDA = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
ENTRY = re.compile(r"^([\w.-]+)==(?:.*\n)(?:    .*\n)*", re.MULTILINE)
VIA = re.compile(r"^    # (?:via|  ) *([\w.-]+)$", re.MULTILINE)


def plain(requirement: str) -> str:
    """The normalised name of a package, without its extras, version or marker."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


def asked(project: dict[str, Any], extra: str) -> list[str]:
    """Requirements of an extra, those of the extras that it names in place of these."""
    extras, found = project["project"]["optional-dependencies"], []
    if extra not in extras:
        sys.exit(f"pyproject.toml has no extra {extra!r}; EXTRAS names some of {', '.join(extras)}")
    for one in extras[extra]:
        if one.startswith("qguide["):
            for name in one.removeprefix("qguide[").removesuffix("]").split(","):
                found += asked(project, name)
        else:
            found.append(one)
    return found


def needed(names: set[str], entries: dict[str, str]) -> set[str]:
    """`names` and all that they need: the lock says after each package what needs it."""
    while more := {n for n, entry in entries.items() if names & set(VIA.findall(entry))} - names:
        names = names | more
    return names


def main(extras: str, torch: str) -> None:
    """Print the entries, or say on stderr what the lock has not."""
    project = tomllib.loads(Path("pyproject.toml").read_text())
    lock = Path("requirements.lock").read_text()
    entries = {plain(found[1]): found[0] for found in ENTRY.finditer(lock)}
    if extras == "build-system":
        requirements = project["build-system"]["requires"]
    else:
        requirements = [*project["project"]["dependencies"]]
        for extra in filter(None, extras.split(",")):
            requirements += asked(project, extra)
    names = {plain(one) for one in requirements}
    if missing := sorted(names - set(entries)):
        sys.exit(f"requirements.lock has no {', '.join(missing)}, which EXTRAS={extras} needs")
    chosen = needed(names, entries)
    if torch != "cu130":
        chosen = {name for name in chosen if not CUDA.fullmatch(name)}
    sys.stdout.writelines(entries[name] for name in sorted(chosen))


if __name__ == "__main__":
    main(*sys.argv[1:])
