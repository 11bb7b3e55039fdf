"""The shape of a result is read from the text that the benchmark prints."""

import pytest

from qguide.training.environments.intercode_sql.bundle import InterCodeSqlConfig, build_suite
from qguide.training.environments.intercode_sql.episode import parse_records, shortened, with_shape


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("[(3,)]", "1 records, 1 columns: "),
        ("[]", "0 records, 0 columns: "),
        ("[('a', None), ('b', 2)]", "2 records, 2 columns, NULL: "),
        ("[(Decimal('2.5'), datetime.date(2008, 1, 1))]", "1 records, 2 columns: "),
        ("Error executing query: no such table: a", ""),
        ("[('cut", ""),
        ("17", ""),
    ],
)
def test_records_have_their_shape_before_them(text: str, shape: str) -> None:
    assert with_shape(text) == shape + text


def test_decimals_and_dates_stay_text() -> None:
    assert parse_records("[(Decimal('2.5'),)]") == [("Decimal('2.5')",)]


def test_a_long_text_says_how_much_is_missing() -> None:
    assert shortened("abcdef", 4) == "abcd … (2 characters more)"
    assert shortened("abcd", 4) == "abcd"


def test_an_episode_tells_shapes_where_it_is_asked_to() -> None:
    suite = build_suite(InterCodeSqlConfig(count=1, result_shape=True))
    episode = suite.make(suite.tasks[0])
    episode.reset()
    assert episode.step("SHOW TABLES").observation == ("3 records, 1 columns: [('author',), ('book',), ('loan',)]")
    assert episode.step("SELECT nothing").observation.startswith("Error executing query: ")
