"""Search ranks a question's paragraphs, and lookup goes through the sentences of one."""

from qguide.training.environments.hotpotqa.bundle import ParagraphIndex, describe_found, sentences_with
from qguide.training.environments.hotpotqa.questions import Paragraph

RIVER = Paragraph("Isen", ("The Isen is a river.", " It flows through Calder."))
TOWN = Paragraph("Calder", ("Calder is a town.", " A river named Isen runs there."))
LONG = Paragraph("Long page", tuple(f"Sentence {number} of it." for number in range(1, 8)))
PAGES = (RIVER, TOWN, LONG)


def test_a_title_is_its_own_best_query() -> None:
    index = ParagraphIndex(PAGES)
    assert index.rank("CALDER ")[0] is TOWN
    assert index.rank("isen")[0] is RIVER


def test_words_find_the_page_that_has_most_of_them() -> None:
    ranked = ParagraphIndex(PAGES).rank("a town with a river")
    assert ranked[:2] == [TOWN, RIVER]


def test_a_page_without_any_of_the_words_is_not_found() -> None:
    index = ParagraphIndex(PAGES)
    assert index.rank("town") == [TOWN]
    assert index.rank("xyzzy") == index.rank("?") == []
    assert describe_found([], " xyzzy ") == "Nothing is found for 'xyzzy'."


def test_a_found_page_shows_its_beginning_and_the_next_titles() -> None:
    shown = describe_found([LONG, TOWN, RIVER], "page")
    assert shown.startswith("Long page: Sentence 1 of it. Sentence 2")
    assert "Sentence 5" in shown
    assert "Sentence 6" not in shown
    assert shown.endswith("\nSimilar: Calder; Isen.")
    assert "Similar" not in describe_found([TOWN], "town")


def test_sentences_are_looked_up_in_any_case() -> None:
    assert sentences_with(TOWN, "RIVER") == ["A river named Isen runs there."]
    assert sentences_with(TOWN, "lake") == []
