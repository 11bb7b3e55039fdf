"""Templates of sentences, found in recordings, and what is learned by their facts."""

from random import Random

import numpy as np

from qguide.qnet.features.hashing import FACT, TASK_FACT, Hasher, entry
from qguide.qnet.features.words import clauses_of
from qguide.qnet.types import Message
from qguide.training.learning.advantage import Options
from qguide.training.learning.episodes import LearnedEpisode
from qguide.training.learning.learner import learn
from qguide.training.learning.templates import known_facts, patterns_of

NAMES = ("Abel", "Brit", "Cora", "Dirk")
TIERS = ("basic", "plus", "prime")
TOLD = [f"File: {name} is a {tier} customer. You wait" for name in NAMES for tier in TIERS]


def template(sentence: str, texts: list[str]) -> str:
    hasher = Hasher(b"salt")
    patterns = set(patterns_of([(text,) for text in texts]))
    return " ".join(hasher.reading(hasher.hashes(patterns)).template(clauses_of(sentence)[0]))


def test_words_that_differ_between_equal_sentences_vary() -> None:
    assert template("Abel is a plus customer", TOLD * 2) == "* is a * customer"
    assert template("Elsa is a plus customer", TOLD * 2) == "* is a * customer", "a new name, too"
    assert template("You wait", TOLD * 2) == "you wait"


def test_two_words_in_one_place_and_words_that_never_come_again_do_not_vary() -> None:
    assert template("It is open", ["It is open", "It is shut"] * 6) == "it is open"
    assert template("It is open", ["It is open", *(f"It is {letter}x" for letter in "abcdefg")]) == "it is open"


def test_facts_are_known_that_come_again_and_of_tasks_those_that_differ() -> None:
    hasher = Hasher(b"salt")
    openings = [(f"Sort the letters of {name}",) for name in (*NAMES * 9, "Elsa")]
    observed = [("You wait",) for _ in openings]
    reading = hasher.reading(hasher.hashes(set(patterns_of(openings))))

    found = set(known_facts(openings, observed, reading))

    of_tasks = {entry(f"sort the letters of *|4={name.lower()}", TASK_FACT) for name in NAMES}
    assert found == {*of_tasks, entry("you wait=said", FACT)}


def episodes(number: int, seed: int) -> list[LearnedEpisode]:
    """One choice each, which is right by a topic and a tier together, told among much else."""
    chance, found = Random(seed), []
    for i in range(number):
        topic, tier, desk = chance.randrange(3), chance.randrange(3), chance.randrange(3)
        noise = " ".join(f"The {word} is {chance.choice(NAMES)}." for word in ("sender", "clerk", "guest", "porter"))
        history = (
            Message("user", f"Letter {i} is about {('bills', 'faults', 'moves')[topic]}."),
            Message("assistant", "Action: look"),
            Message("user", f"{noise} The file says {TIERS[tier]}."),
        )
        action = Message("assistant", f"Action: route {('red', 'green', 'blue')[desk]}")
        found.append(LearnedEpisode(f"{i}", (history,), (action,), float(desk == (topic + tier) % 3)))
    return found


def test_pairs_of_facts_are_learned_from_few_episodes() -> None:
    model = learn(episodes(250, 0), Options(), Hasher(b"salt")).model
    desks = tuple(Message("assistant", f"Action: route {desk}") for desk in ("red", "green", "blue"))

    right = []
    for one in episodes(120, 1):
        best = desks[int(np.argmax(model.q_values(one.states[0], desks)))]
        right.append((best == one.actions[0]) == bool(one.reward))

    # Where the recorded action is wrong, either of two others may be right: a chooser by chance agrees in 5 of 9.
    assert np.mean(right) > 0.85
