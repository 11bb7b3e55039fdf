"""Documents of the search task: three of each town, several hundred words each, from a seed.

Each document tells of its town's six facts and of others like them. A fact's own document has the
true value; the other two have gone out of date.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from random import Random
from typing import Final

from benchmarks.strangers.worlds import shared_out

TOWNS: Final = (
    "Velmora",
    "Tarnby",
    "Ostrel",
    "Quillon",
    "Brask",
    "Hewick",
    "Lindry",
    "Morvale",
    "Sundrin",
    "Yarrow",
    "Corvane",
    "Ebberly",
    "Fenwold",
    "Graymere",
    "Isenfell",
    "Jarrock",
)
SOURCES: Final = ("Chronicle", "Almanac", "Guide")
PEOPLE: Final = tuple(
    f"{first} {last}"
    for first, last in product(
        ("Orla", "Tam", "Ilse", "Bram", "Nadia"), ("Venn", "Reed", "Holt", "Ames", "Crane", "Dowd")
    )
)
YEARS: Final = tuple(str(year) for year in range(1507, 1893, 7))


@dataclass(frozen=True)
class Topic:
    """Kind of fact that every town has.

    Attributes:
        question: with {town}.
        values: from which a value is drawn.
        sentences: its wordings in documents, with {town} and {value}.
    """

    question: str
    values: tuple[str, ...]
    sentences: tuple[str, ...]


TOPICS: Final = {
    "bridge": Topic(
        "Who designed the bridge of {town}?",
        PEOPLE,
        (
            "The great bridge was the work of {value}, who never saw a carriage cross it.",
            "Travellers who come by water first see the arches that {value} drew up for the span.",
        ),
    ),
    "charter": Topic(
        "In which year did {town} receive its charter?",
        YEARS,
        (
            "Its charter was granted in {value} and still hangs in the lower hall.",
            "The liberties of the place were sealed in {value}, in wet ink and bad weather.",
        ),
    ),
    "school": Topic(
        "Who founded the school of {town}?",
        PEOPLE,
        (
            "The school was founded by {value} with the rent of two meadows.",
            "Lessons began under {value}, who taught reckoning to anyone that brought firewood.",
        ),
    ),
    "fire": Topic(
        "In which year did the fire destroy much of {town}?",
        YEARS,
        (
            "The fire of {value} left only the tannery and the east gate standing.",
            "Half of the roofs were lost to the flames in {value}, as the beams still show.",
        ),
    ),
    "song": Topic(
        "Who wrote the song of {town}?",
        PEOPLE,
        (
            "The song that everybody knows was written by {value} in a single evening.",
            "At the fair they sing the verses of {value}, all nine of them.",
        ),
    ),
    "market": Topic(
        "In which year was the market of {town} first held?",
        YEARS,
        (
            "The market was first held in {value}, with eleven stalls and a dancing bear.",
            "Traders have met on the square since {value}, whatever the weather.",
        ),
    ),
}
"""Kinds of facts, by the word that names each."""

OTHERS: Final = (
    ("The mill below the weir was rebuilt by {value} after a hard winter.", PEOPLE),
    ("A portrait of {value} hangs in the library, though few know why.", PEOPLE),
    ("The last wolf was seen in {value} by a baker on his way home.", YEARS),
    ("The clock in the tower has been slow since {value}.", YEARS),
)
_FILLERS: Final = (
    "The road from the south follows an old drove and is muddy until late in spring.",
    "Most houses are of pale stone, with slate roofs and narrow green shutters.",
    "In autumn the smoke of the kilns lies over the valley for days.",
    "The bread is dark, the cheese is mild, and the cider is better than its name.",
    "A footpath leads along the water to a chapel that is always open.",
    "Children are told that the well behind the inn has no bottom.",
    "The carrier leaves twice a week and takes parcels as well as passengers.",
    "There is a small collection of tools and looms on the upper floor of the granary.",
    "On clear days one sees as far as the salt marshes and the two lighthouses.",
    "The old people keep to their own calendar and are seldom late.",
    "Nobody remembers who planted the lime trees, but everybody has an opinion on it.",
    "Letters are handed out on the steps of the town hall, shortly after the noon bell.",
    "The ferry does not run in high water, and the ferryman is then hard to find.",
)


@dataclass(frozen=True)
class Document:
    """A text with its title, such as "Chronicle of Brask"."""

    title: str
    text: str


@dataclass(frozen=True)
class Library:
    """The documents of one world.

    Attributes:
        documents: by title.
        source: of each topic, the kind of document that has its true value.
        answers: true value of each pair of town and topic.
        questions: pairs of town and topic, in the order of their numbers.
    """

    documents: dict[str, Document]
    source: dict[str, str]
    answers: dict[tuple[str, str], str]
    questions: tuple[tuple[str, str], ...]


@lru_cache(maxsize=64)
def library(world: int) -> Library:
    """The documents and questions of a world."""
    chance = Random(f"library {world}")
    questions = list(product(TOWNS, TOPICS))
    source = shared_out(tuple(TOPICS), SOURCES, chance)
    documents: dict[str, Document] = {}
    answers: dict[tuple[str, str], str] = {}
    for town in TOWNS:
        told = {topic: chance.sample(TOPICS[topic].values, 3) for topic in TOPICS}
        for place, kind in enumerate(SOURCES):
            own = {topic: values[place] for topic, values in told.items()}
            title = f"{kind} of {town}"
            documents[title] = Document(title, _text(town, kind, own, chance))
            answers |= {(town, t): value for t, value in own.items() if source[t] == kind}
    chance.shuffle(questions)
    return Library(documents, source, answers, tuple(questions))


def _text(town: str, kind: str, facts: dict[str, str], chance: Random) -> str:
    """A document's text, its facts among other sentences."""
    sentences = [
        chance.choice(TOPICS[topic].sentences).format(town=town, value=value) for topic, value in facts.items()
    ]
    taken = set(facts.values())
    for sentence, values in OTHERS:
        value = chance.choice([v for v in values if v not in taken])
        taken.add(value)
        sentences.append(sentence.format(value=value))
    sentences += [filler for filler in _FILLERS if chance.random() < 0.9]
    chance.shuffle(sentences)
    return f"This is the {kind.lower()} of {town}. " + " ".join(sentences)
