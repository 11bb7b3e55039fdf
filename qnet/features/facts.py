"""Facts of a state: what sentences say in the places where those of one template differ.

Programs write what agents read. "The column price is of type date" and "The column city is of type name" are the
template "the column * is of type *", which recordings tell (see `qguide.training.learning.templates`), and say price
and city in one place, date and name in another. So a state is a row of a table with a few columns, where bags of words
have hundreds, and pairs of facts can be learned from a few hundred episodes.

A fact is a text "template|place=word". A sentence that varies nowhere is a fact itself.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from qguide.qnet.features.hashing import (
    FACT,
    REPEATED,
    TASK_FACT,
    Families,
    Hasher,
    Hashes,
    crossed,
    families_of,
    pairs_of,
)
from qguide.qnet.features.words import ANY_NUMBER, VARYING, ActionWords, clauses_of, is_number

Clause = tuple[str, ...]
Answer = tuple[frozenset[str], str]
"""Words of an action, and what was observed after it."""
MOST_WORDS: Final = 24
"""Of a clause that is read; longer ones are prose."""
_MOST_PLACES: Final = 5
_MOST_FACTS: Final = 24
_MOST_TASK_FACTS: Final = 12
_MOST_NUMBERS: Final = 6
SAID: Final = "said"
"""Stands for the word of a place where a sentence varies nowhere."""
_OWN: Final = "@"  # stands for the words of an action in the template of a sentence that has them


@dataclass(frozen=True, slots=True)
class Facts:
    """Knowledge of a state.

    Attributes:
        task: hashes of the facts of the task.
        told: of these and of the last observations; of one place the newest.
        paired: of each two of those.
        beside_key, beside_form: families of both, that stand beside a candidate's action, and beside its skeleton.
        numbers: of the task, each with its place.
        texts: the last observations, each with the words of the action before, and the task, in which those of an
            action are looked up.
        words: of the task, by which a number is large or small.
    """

    task: Hashes
    told: Hashes
    paired: Hashes
    beside_key: Families
    beside_form: Families
    numbers: tuple[tuple[str, float], ...]
    texts: tuple[Answer, ...]
    words: tuple[str, ...]


def facts_in(texts: Sequence[Answer], opening: str, words: tuple[str, ...], hasher: Hasher) -> Facts:
    """The facts of a state."""
    of_task = hasher.known(_newest([opening], hasher, words), TASK_FACT)[:_MOST_TASK_FACTS]
    observed = hasher.known(_newest([text for _, text in texts], hasher, words), FACT)[-_MOST_FACTS:]
    told = hasher.hashes(dict.fromkeys((*of_task, *observed)))
    numbers = [
        (f"{' '.join(hasher.template(clause))}|{i}", float(word))
        for clause in _read(opening)
        for i, word in enumerate(clause)
        if is_number(word)
    ]
    paired, every = pairs_of(told), (*texts, (frozenset[str](), opening))
    beside = {"alone": hasher.hashes([""]), "fact": told, "facts": paired}
    of_key, of_form = (
        families_of({f"{kind}-{name}": hashes for name, hashes in beside.items()}, hasher) for kind in ("key", "form")
    )
    return Facts(hasher.hashes(of_task), told, paired, of_key, of_form, tuple(numbers[:_MOST_NUMBERS]), every, words)


def _newest(texts: Sequence[str], hasher: Hasher, words: tuple[str, ...]) -> list[str]:
    """The newest fact of each place, the oldest first."""
    found: dict[str, str] = {}
    for text in texts:
        for clause in _read(text):
            for place, word in facts_of(clause, hasher.template(clause), hasher, words):
                found.pop(place, None)
                found[place] = word
    return [f"{place}={word}" for place, word in found.items()]


def _read(text: str) -> Iterator[Clause]:
    return (clause for clause in clauses_of(text) if len(clause) <= MOST_WORDS)


def facts_of(
    clause: Clause, template: Clause, hasher: Hasher, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, str]]:
    """Each place of a clause with its word, and where its template comes again, beside each other word.

    "The heat is 63" says 63 of the heat, whatever else is measured in such sentences. A number is
    told as it is and, beside other words, by its size.
    """
    name = " ".join(template)
    places = [i for i, word in enumerate(template) if word in VARYING][:_MOST_PLACES]
    if not places:
        yield name, SAID
    said: dict[int, str] = {}
    for i in places:
        if template[i] != ANY_NUMBER:
            said[i] = clause[i]
            continue
        if not is_number(clause[i]):
            continue
        yield f"{name}|{i} as it is", clause[i]
        if (size := hasher.size(_label(clause, i), float(clause[i]), words)) is not None:
            said[i] = f"{size} quantiles"
    yield from ((f"{name}|{i}", word) for i, word in said.items())
    if hasher.known([name], REPEATED):
        yield from ((f"{name}|{i}={said[i]}|{j}", said[j]) for i, j in combinations(said, 2))


def _label(clause: Clause, place: int) -> str:
    """The word before a number, as `numbers_of` has it."""
    before = (word for word in reversed(clause[:place]) if word not in ("is", "are"))
    return next((word for word in before if not is_number(word)), "")


def candidate_families(facts: Facts, action: ActionWords, form: str, hasher: Hasher) -> list[Families]:
    """Families of a candidate: itself and its skeleton beside what is known, and what is said of its words."""
    own = [(hasher.hashes([rest]), hasher.hashes(said)) for rest, said in _said_of(action, facts, hasher).items()]
    empty = facts.told[:0]
    of_words = {
        "said": [crossed(rest, said) for rest, said in own],
        "said-paired": [crossed(rest, pairs_of(said)) for rest, said in own],
        "said-task": [crossed(rest, crossed(said, facts.task)) for rest, said in own],
    }
    named = {name: np.concatenate([empty, *hashes]) for name, hashes in of_words.items()}
    beside = (facts.beside_key.beside(hasher.hashes([action.key])), facts.beside_form.beside(hasher.hashes([form])))
    return [*beside, families_of(named, hasher)]


def _said_of(action: ActionWords, facts: Facts, hasher: Hasher) -> dict[str, list[str]]:
    """Facts of clauses that have words of an action, by the rest of the action.

    To clean the price by filling is filling of a column "@ is of type date". A page whose title has
    the action's words says all its facts of them, and so does the answer to an action that had them:
    of `inspect("price")` it may be `{"type": "date"}`.
    """
    own = frozenset(action.words)
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for asked, text in facts.texts:
        clauses = list(_read(text))
        concerned = own.intersection(clauses[0]) if clauses and _is_title(clauses, hasher) else frozenset[str]()
        concerned = concerned or (own & asked)
        for clause in clauses:
            template = hasher.template(clause)
            if held := own.intersection(clause):
                told = found[action.without(held)]
                named = tuple(_OWN if word in own else kept for word, kept in zip(clause, template, strict=True))
                told[" ".join(named)] = SAID
                told.update(facts_of(clause, named, hasher, facts.words))
                told.update(_compared(clause, named, facts))
            elif concerned:
                pairs = [f"{place}={word}" for place, word in facts_of(clause, template, hasher, facts.words)]
                found[action.without(concerned)].update(dict.fromkeys(hasher.known(pairs, FACT), "on its page"))
    return {rest: [f"{place}={word}" for place, word in told.items()][-_MOST_FACTS:] for rest, told in found.items()}


def _is_title(clauses: Sequence[Clause], hasher: Hasher) -> bool:
    """True where the first clause is of no other's template, as a row of a list is."""
    first = hasher.template(clauses[0])
    return all(hasher.template(clause) != first for clause in clauses[1:])


def _compared(clause: Clause, named: Clause, facts: Facts) -> Iterator[tuple[str, str]]:
    """Each number of a clause beside those of the task: a price beside a budget."""
    name = " ".join(named)
    for i, word in enumerate(clause):
        if named[i] == ANY_NUMBER and is_number(word):
            for place, number in facts.numbers:
                yield f"{name}|{i} beside {place}", "more" if float(word) > number else "no more"
