"""Listing and searching of recorded episodes."""

from pathlib import Path

import pytest

from qguide.qnet.errors import UnknownEpisodeError
from qguide.qnet.records import NodeRow, OfferRow, TreeRow
from qguide.server.episodes import archive as archive_module
from qguide.server.episodes.archive import SEARCHED_CHARACTERS, EpisodeArchive
from qguide.server.http.keys import create_key
from tests.support.offers import offer
from tests.unit.server.conftest import FAKES, Serve


def tree(episode: str, *actions: str, task: str = "t", reward: float = 1.0, seen: str = "A room.") -> TreeRow:
    last = len(actions)
    nodes = tuple(
        NodeRow(
            id=number,
            parent=number - 1,
            depth=number,
            action=action,
            observation="Done.",
            reward=reward if number == last else 0.0,
            source="agent",
        )
        for number, action in enumerate(actions, start=1)
    )
    return TreeRow(
        task_id=task, kind="served", environment="served", first_observation=seen, nodes=nodes, draws=1, episode=episode
    )


def append(folder: Path, *rows: OfferRow | TreeRow, number: int = 1) -> None:
    for row in rows:
        kind = "offers" if isinstance(row, OfferRow) else "trees"
        with (folder / f"{kind}-{number}.jsonl").open("a") as file:
            file.write(row.model_dump_json() + "\n")


def ids(archive: EpisodeArchive, *, search: str = "", rewarded: bool | None = None, limit: int = 10) -> list[str]:
    found, _ = archive.newest(search=search, rewarded=rewarded, limit=limit)
    return [one.episode for one in found]


def test_episodes_are_listed_newest_first_with_their_q(tmp_path: Path) -> None:
    archive = EpisodeArchive(tmp_path)
    assert archive.newest(limit=10) == ([], 0)
    append(tmp_path, tree("first", "a1", "a0", seen="Heat some Apple."))
    append(tmp_path, offer(1, episode="first"), offer(2, episode="first", taken="a0"))
    append(tmp_path, offer(1, episode="second", q_values=(None,), chosen=0, outcome=0.0))
    found, matching = archive.newest(limit=10)
    assert ([one.episode for one in found], matching) == (["second", "first"], 2)
    second, first = found
    assert first.task == "Heat some Apple."
    assert [(step.depth, step.taken, step.lowest, step.highest) for step in first.steps] == [
        (1, 0.8, 0.2, 0.8),
        (2, 0.2, 0.2, 0.8),
    ]
    assert [(step.taken, step.lowest) for step in second.steps] == [(None, None)]
    assert (second.task, second.reward) == ("", 0.0)


def test_an_episode_that_was_written_twice_has_each_step_once(tmp_path: Path) -> None:
    archive = EpisodeArchive(tmp_path)
    first, second = offer(1, episode="a"), offer(2, episode="a")
    append(tmp_path, first, second, first, second)
    append(tmp_path, first, second, number=2)
    [listed], _ = archive.newest(limit=9)
    assert [step.depth for step in listed.steps] == [1, 2]


def test_the_rest_of_an_episode_that_a_killed_server_did_not_finish_is_read(tmp_path: Path) -> None:
    archive = EpisodeArchive(tmp_path)
    first, second = offer(1, episode="a"), offer(2, episode="a")
    append(tmp_path, first)
    append(tmp_path, first, second, number=2)
    [listed], _ = archive.newest(limit=9)
    assert [step.depth for step in listed.steps] == [1, 2]


def test_words_and_rewards_select(tmp_path: Path) -> None:
    append(tmp_path, tree("hot", "a1", seen="Heat some Apple."))
    append(tmp_path, offer(episode="hot"), offer(episode="cool", task="u", outcome=-1.0))
    append(tmp_path, tree("cool", "a1", task="u", reward=-1.0, seen="Cool a mug."))
    archive = EpisodeArchive(tmp_path)
    assert ids(archive, search="APPLE some") == ["hot"]
    assert ids(archive, search="a1") == ["cool", "hot"], "actions, too"
    assert ids(archive, search="apple mug") == []
    assert ids(archive, rewarded=True) == ["hot"]
    assert ids(archive, rewarded=False) == ["cool"]
    assert archive.newest(limit=1, search="a1")[1] == 2


def test_what_is_appended_is_listed_and_unfinished_or_broken_lines_are_not(tmp_path: Path) -> None:
    archive = EpisodeArchive(tmp_path)
    append(tmp_path, offer(episode="one"), offer(episode=""))
    path = tmp_path / "offers-1.jsonl"
    half = offer(episode="two").model_dump_json()
    with path.open("a") as file:
        file.write("{broken\n" + half[:40])
    assert ids(archive) == ["one"]
    with path.open("a") as file:
        file.write(half[40:] + "\n")
    append(tmp_path, offer(episode="three"), number=2)
    assert ids(archive) == ["three", "two", "one"]


def test_each_episode_of_a_task_has_its_own_tree_whichever_is_read_first(tmp_path: Path) -> None:
    archive = EpisodeArchive(tmp_path)
    append(tmp_path, tree("two", "a1", seen="Second."), offer(episode="one"), offer(episode="two"))
    append(tmp_path, offer(episode="three"))
    assert ids(archive) == ["three", "two", "one"]
    append(tmp_path, tree("one", "a1", seen="First."))
    found, _ = archive.newest(limit=10)
    assert [one.task for one in found] == ["", "Second.", "First."]
    assert ids(archive, search="first") == ["one"]
    assert archive.rows("one")[1] == tree("one", "a1", seen="First.")


def test_an_episode_that_was_stopped_keeps_its_path(tmp_path: Path) -> None:
    append(tmp_path, tree("one", "a1", "a0", seen="Heat some Apple."))
    append(tmp_path, offer(1, episode="one"), offer(2, episode="one", taken="a0"))
    append(tmp_path, offer(3, episode="one", taken=""))
    archive = EpisodeArchive(tmp_path)
    [found], _ = archive.newest(limit=10)
    assert found.task == "Heat some Apple."
    assert archive.rows("one")[1] is not None
    assert [step.taken for step in found.steps] == [0.8, 0.2, None]


def test_a_task_at_the_end_of_a_long_observation_and_the_actions_are_found(tmp_path: Path) -> None:
    seen = "A room. " * SEARCHED_CHARACTERS + "Find the unicorn."
    append(tmp_path, tree("one", "a1", seen=seen), offer(episode="one"))
    archive = EpisodeArchive(tmp_path)
    for words in ("unicorn", "a1", "room"):
        assert ids(archive, search=words) == ["one"]


def test_rows_are_read_from_the_files_and_gone_with_them(tmp_path: Path) -> None:
    archive = EpisodeArchive(tmp_path)
    seen = tree("one", "a1")
    append(tmp_path, seen, offer(episode="one"))
    assert archive.rows("one") == ([offer(episode="one")], seen)
    with pytest.raises(UnknownEpisodeError, match="'two'"):
        archive.rows("two")
    (tmp_path / "offers-1.jsonl").unlink()
    with pytest.raises(UnknownEpisodeError, match="QGUIDE_EPISODES_MAX_FILES"):
        archive.rows("one")


@pytest.mark.parametrize("in_place", [False, True])
def test_what_was_deleted_from_a_file_is_not_told_and_what_follows_is(tmp_path: Path, *, in_place: bool) -> None:
    archive = EpisodeArchive(tmp_path)
    for name in ("kept", "deleted"):
        append(tmp_path, tree(name, "a1", seen=f"Task of {name}."), offer(1, episode=name))
    assert ids(archive) == ["deleted", "kept"]
    for path in tmp_path.glob("*.jsonl"):
        rest = "".join(line for line in path.read_text().splitlines(keepends=True) if '"deleted"' not in line)
        target = path if in_place else path.with_suffix(".new")  # as `sed -i` does
        target.write_text(rest)
        target.replace(path)
    append(tmp_path, tree("later", "a1"), offer(1, episode="later"))
    assert ids(archive) == ["later", "kept"]
    assert ids(archive, search="deleted") == []
    for name in ("kept", "later"):
        offers, read = archive.rows(name)
        assert len(offers) == 1
        assert read is not None


def test_only_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "MOST_EPISODES", 2)
    append(tmp_path, *(offer(episode=f"e{number}") for number in range(4)))
    append(tmp_path, *(tree(f"e{number}", "a1") for number in range(4)))
    archive = EpisodeArchive(tmp_path)
    assert ids(archive) == ["e3", "e2"]
    append(tmp_path, offer(episode="e4"))
    assert ids(archive) == ["e4", "e3"]


def test_only_an_admin_key_lists_them(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    append(folder, tree("one", "a1"), offer(episode="one"))
    keys = tmp_path / "keys.json"
    plain, root = create_key(keys, "ada"), create_key(keys, "root", admin=True)
    settings = FAKES.model_copy(update={"admin": True, "keys_file": keys, "episodes_dir": folder})
    client = serve(settings)
    for path in ("/v1/episodes", "/v1/episodes/one"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"X-API-Key": plain}).status_code == 403
    headers = {"X-API-Key": root}
    listed = client.get("/v1/episodes", params={"search": "room"}, headers=headers).json()
    assert listed["matching"] == 1
    assert listed["episodes"][0]["steps"] == [{"depth": 1, "taken": 0.8, "lowest": 0.2, "highest": 0.8}]
    rows = client.get("/v1/episodes/one", headers=headers).json()
    assert OfferRow.model_validate(rows["offers"][0]) == offer(episode="one")
    assert TreeRow.model_validate(rows["tree"]) == tree("one", "a1")
    missing = client.get("/v1/episodes/two", headers=headers)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_episode")
    assert client.get("/playground/abilities").json()["recorded"] is True


def test_without_the_setting_there_is_no_list(serve: Serve, tmp_path: Path) -> None:
    off = serve(FAKES.model_copy(update={"episodes_dir": tmp_path}))
    assert off.get("/v1/episodes").status_code == 404
    assert off.get("/playground/abilities").json()["recorded"] is False
    unrecorded = serve(FAKES.model_copy(update={"admin": True})).get("/v1/episodes")
    assert unrecorded.status_code == 400
    assert "QGUIDE_EPISODES_DIR" in unrecorded.json()["error"]["message"]
