"""Facts that sentences of one template say, of a state and of the words of an action."""

from qguide.qnet.features.facts import candidate_families, facts_in, facts_of
from qguide.qnet.features.hashing import FACT, PATTERNS, REPEATED, TASK_FACT, Hasher, entry
from qguide.qnet.features.words import action_words, clauses_of
from qguide.qnet.types import Message

COLUMN = "the column * is of type *"
KNOWN = {
    *(entry(f"the column * is of type {kind}", PATTERNS[0]) for kind in ("date", "name")),
    *(entry(f"the column {column} is of type *", PATTERNS[0]) for column in ("price", "city")),
    entry(f"{COLUMN}|2=price", FACT),
    entry(f"{COLUMN}|6=date", FACT),
    entry("the house has a garden=said", FACT),
}


def hasher_knowing(*entries: str) -> Hasher:
    hasher = Hasher(b"salt")
    return hasher.reading(hasher.hashes({*KNOWN, *entries}))


def test_what_follows_a_colon_is_a_clause_of_its_own_unless_it_is_a_word_or_two() -> None:
    assert clauses_of("Letter: The line is dead. Tier: prime") == (
        ("letter",),
        ("the", "line", "is", "dead"),
        ("tier", "prime"),
    )


def test_words_that_vary_are_facts_of_their_places_and_beside_each_other_where_such_sentences_come_again() -> None:
    clause = clauses_of("The column price is of type date.")[0]
    template = hasher_knowing().template(clause)

    assert " ".join(template) == COLUMN
    alone = {(f"{COLUMN}|2", "price"), (f"{COLUMN}|6", "date")}
    assert set(facts_of(clause, template, hasher_knowing())) == alone
    several = hasher_knowing(entry(COLUMN, REPEATED))
    assert set(facts_of(clause, template, several)) == alone | {(f"{COLUMN}|2=price|6", "date")}


def test_a_sentence_that_nothing_is_known_of_is_a_fact_itself_and_its_numbers_vary() -> None:
    [clause] = clauses_of("It runs at 63")
    hasher = Hasher()

    assert " ".join(hasher.template(clause)) == "it runs at #"
    assert list(facts_of(clause, hasher.template(clause), hasher)) == [("it runs at #|3 as it is", "63")]


def test_of_one_place_the_newest_fact_is_read_and_only_known_ones_are() -> None:
    hasher = hasher_knowing(entry(f"{COLUMN}|6=name", FACT), entry("sort the tables=said", TASK_FACT))

    found = facts_in(
        seen("The column price is of type date. It hums", "The column city is of type name"),
        "Sort the tables",
        (),
        hasher,
    )

    expected = {"sort the tables=said", f"{COLUMN}|6=name"}
    assert set(found.told.tolist()) == set(hasher.hashes(expected).tolist())
    assert found.task.tolist() == hasher.hashes(["sort the tables=said"]).tolist()


def seen(*texts: str) -> list[tuple[frozenset[str], str]]:
    return [(frozenset(), text) for text in texts]


def features(action: str, texts: tuple[str, ...], opening: str = "", asked: frozenset[str] = frozenset()) -> set[int]:
    """Hashes of what is said of an action's words."""
    hasher = hasher_knowing()
    facts = facts_in([(asked, text) for text in texts], opening, (), hasher)
    said = candidate_families(facts, action_words(Message("assistant", action)), "", hasher)[-1]
    return set(said.hashes.tolist())


def test_what_is_said_of_an_action_is_the_same_whatever_its_words_are() -> None:
    price = features("Action: clean price fill", ("The column price is of type date",))
    city = features("Action: clean city fill", ("The column city is of type date",))

    assert price == city != set()
    assert price != features("Action: clean city drop", ("The column city is of type date",))
    assert price != features("Action: clean city fill", ("The column price is of type date",))


def test_a_page_says_all_its_facts_of_what_its_title_names_and_a_list_only_its_rows() -> None:
    page = "Page of the Anchor\nThe house has a garden."
    listed = "The Anchor asks 85.\nThe Bell asks 85."

    of_anchor, of_bell = (features(f"Action: book {house}", (page,)) for house in ("anchor", "bell"))
    assert of_anchor
    assert not of_bell
    assert of_anchor > features("Action: book anchor", ("Page of the Anchor\nThe house has a cellar.",))
    assert len(features("Action: book bell", (listed,))) == len(features("Action: book bell", (listed.split("\n")[1],)))


def test_a_number_beside_the_words_of_an_action_is_compared_with_those_of_the_task() -> None:
    cheap, fair, dear = (
        features("Action: book bell", (f"The bell asks {price}",), f"Pay {budget} at most")
        for price, budget in ((80, 90), (80, 80), (80, 70))
    )

    assert cheap == fair
    assert len(cheap - dear) == len(dear - cheap) > 0


def test_an_answer_is_of_what_was_asked_for_whether_it_says_so_or_not() -> None:
    answer = "It is known. The house has a garden"
    of_anchor, of_bell = (
        features(f"Action: book {house}", (answer,), asked=frozenset({"anchor"})) for house in ("anchor", "bell")
    )

    assert of_anchor
    assert not of_bell


def test_json_is_read_by_its_objects_and_a_line_of_a_log_with_the_first_word_behind_its_colon() -> None:
    told = '{"incident": {"severity": 1, "source": {"kind": "gateway", "up": true}}, "tags": ["new", 7]}'
    clauses = (
        ("incident", "severity", "1"),
        ("source", "kind", "gateway", "up", "true"),
        ("tags", "new"),
        ("tags", "7"),
    )
    assert clauses_of(told) == clauses
    assert clauses_of(repr({"kind": "it's", "up": None})) == (("kind", "it's", "up", "null"),)
    assert clauses_of("{not json at all") == (("not", "json", "at", "all"),)
    for odd in ("{1, 2}", "{'a': b'x'}", "[...]", "{[1]: 2}", "[" * 4_000, '{"a": ' * 1_200 + "1" + "}" * 1_200):
        assert all(isinstance(clause, tuple) for clause in clauses_of(odd))
    line = "web3 indexer[811] 10:20: error: the disk is full"
    assert clauses_of(line)[0] == ("web3", "indexer", "811", "10:20", "error")
    assert " ".join(Hasher().template(clauses_of(line)[0])) == "web3 indexer # # error"
