"""Reading of recorded episodes: row by row, grouped, and with bad rows named by their line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from qguide.qnet.errors import RecordError
from qguide.qnet.records import OfferRow
from qguide.training.guidance_report.columns import read_columns
from qguide.training.guidance_report.offers import environment_labels, offer_files, read_episodes
from tests.support.offers import offer, write_offers


def refuse(error: RecordError) -> None:
    raise error


def depths(path: Path) -> list[list[int]]:
    return [[row.depth for row in rows] for rows in read_episodes([path], refuse)]


def test_steps_are_grouped_by_the_episodes_id(tmp_path: Path) -> None:
    rows = [offer(1, episode="a"), offer(1, episode="b"), offer(2, episode="b")]
    assert depths(write_offers(tmp_path, rows)) == [[1], [1, 2]]


def test_an_episode_that_was_written_twice_is_read_once(tmp_path: Path) -> None:
    rows = [offer(1, episode="a"), offer(2, episode="a")]
    assert depths(write_offers(tmp_path, [*rows, *rows, offer(1, episode="b"), *rows])) == [[1, 2], [1]]


def test_an_episode_that_a_kill_cut_is_read_as_it_was_recorded_later(tmp_path: Path) -> None:
    whole = [offer(depth, episode="a") for depth in (1, 2, 3)]
    for number, rows in enumerate([[offer(episode="b"), *whole[:2]], [*whole, offer(episode="c")]]):
        write_offers(tmp_path, rows).rename(tmp_path / f"offers-{number}.jsonl")
    with (tmp_path / "offers-0.jsonl").open("a") as cut:
        cut.write(whole[2].model_dump_json()[:40])
    found = read_episodes(offer_files([tmp_path]), refuse)
    assert {rows[0].episode: len(rows) for rows in found} == {"a": 3, "b": 1, "c": 1}


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (offer(2, episode=""), [[1, 2]]),
        (offer(1, episode=""), [[1], [1]]),
        (offer(2, episode="", task="u"), [[1], [2]]),
        (offer(2, episode="", outcome=0.0), [[1], [2]]),
    ],
)
def test_rows_without_an_id_are_told_apart_by_what_changes(
    tmp_path: Path, second: OfferRow, expected: list[list[int]]
) -> None:
    assert depths(write_offers(tmp_path, [offer(1, episode=""), second])) == expected


def test_a_file_is_read_no_further_than_needed(tmp_path: Path) -> None:
    path = write_offers(tmp_path, [offer(episode="a"), offer(episode="b")])
    with path.open("a") as file:
        file.write('{"task_id": 3}\n')
    episodes = read_episodes([path], refuse)
    assert [row.episode for row in next(episodes)] == ["a"]
    with pytest.raises(RecordError, match=r"offers-1\.jsonl, line 3: task_id: .*--skip-bad"):
        list(episodes)


def test_bad_rows_are_noted_and_left_out(tmp_path: Path) -> None:
    path = write_offers(tmp_path, [offer(episode="a")])
    with path.open("a") as file:
        file.write("no json\n" + offer(episode="b").model_dump_json() + "\n" + '{"half')
    bad: list[RecordError] = []
    assert len(list(read_episodes([path], bad.append))) == 2
    assert [str(error).partition(":")[0] for error in bad] == [f"{path}, line 2"]


def test_a_folder_without_offers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"offers-\*\.jsonl; .*QGUIDE_EPISODES_DIR"):
        offer_files([tmp_path])


def test_the_system_message_stands_for_the_environment(tmp_path: Path) -> None:
    trees = [
        {"task_id": "a", "system": "You buy shoes.\nMore.", "environment": "served"},
        {"task_id": "b", "system": None, "environment": "served"},
        {"task_id": "c", "system": None, "environment": "webshop"},
        {"task_id": "d", "system": " \n", "environment": "served"},
        {"rows": 1},
    ]
    (tmp_path / "trees-1.jsonl").write_text("".join(json.dumps(tree) + "\n" for tree in trees))
    assert environment_labels([tmp_path]) == {
        "a": "You buy shoes.",
        "b": "no system message",
        "c": "webshop",
        "d": "no system message",
    }


def test_the_environment_of_an_episode_that_ends_while_the_report_is_made_is_found(tmp_path: Path) -> None:
    def recorded() -> Iterator[list[OfferRow]]:
        (tmp_path / "trees-1.jsonl").write_text(
            '{"task_id": "t", "system": "You buy shoes.", "environment": "served"}\n'
        )
        yield [offer()]

    assert read_columns(recorded(), lambda: environment_labels([tmp_path])).environments == ("You buy shoes.",)
