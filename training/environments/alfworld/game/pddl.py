"""Facts, names and goal of an ALFWorld game, from its PDDL text.

Only flat facts matter, so three regular expressions replace a planner's parser. Identifiers are
converted to lower case, as the planner does before it sorts and names entities.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

Facts = dict[str, set[tuple[str, ...]]]
"""Arguments of the true facts of each predicate; predicates and arguments are in lower case."""

_COMMENT = re.compile(r";[^\n]*")
_ATOM = re.compile(r"\(\s*([a-z]\w*)((?:\s+[\w?]+)+)\s*\)")
_RECEPTACLE_TYPE = re.compile(r"\(\s*receptacletype\s+\?r\s+(\w+)\s*\)")
_TYPE_SUFFIX = "type"


def initial_facts(problem: str) -> Facts:
    """Facts of the initial state."""
    return _atoms(_sections(problem)[0])


def goal_atoms(problem: str) -> Facts:
    """The atoms that the goal mentions, variables included."""
    return _atoms(_sections(problem)[1])


def _sections(problem: str) -> tuple[str, str]:
    text = _COMMENT.sub("", problem).lower()
    _, init_marker, rest = text.partition("(:init")
    init, goal_marker, goal = rest.partition("(:goal")
    if not init_marker or not goal_marker:
        raise ValueError("the PDDL problem lacks '(:init' or '(:goal'")
    return init, goal


def _atoms(text: str) -> Facts:
    facts: Facts = defaultdict(set)
    for predicate, arguments in _ATOM.findall(text):
        facts[predicate].add(tuple(arguments.split()))
    return facts


def appliance_kinds(domain: str, action: str) -> frozenset[str]:
    """Receptacle kinds in an action's precondition, such as sinks for "CleanObject"."""
    text = _COMMENT.sub("", domain).lower()
    _, _, body = text.partition(f"(:action {action.lower()}\n")
    precondition = body.partition(":effect")[0]
    return frozenset(kind(name) for name in _RECEPTACLE_TYPE.findall(precondition))


def kind(type_name: str) -> str:
    """The kind that a PDDL type stands for, such as "desklamp" for "desklamptype"."""
    return type_name.removesuffix(_TYPE_SUFFIX)


def entity_names(facts: Facts) -> dict[str, str]:
    """Textual names of all entities, as alfworld's `Demangler` assigns them.

    Ids are sorted and the numbers of each base name count down, so the first "drawer" has the
    highest number. Objects, receptacles and locations are sorted together.
    """
    ids = {argument for rows in facts.values() for row in rows for argument in row}
    return _numbered(sorted(entity for entity in ids if "_bar_" in entity))


def _numbered(sorted_ids: Iterable[str]) -> dict[str, str]:
    bases = {entity: _base_name(entity) for entity in sorted_ids}
    left = Counter(bases.values())
    names = {}
    for entity, base in bases.items():
        names[entity] = f"{base} {left[base]}"
        left[base] -= 1
    return names


def _base_name(entity: str) -> str:
    base = entity.split("_bar_", 1)[0]
    return base + "basin" if "basin" in entity else base
