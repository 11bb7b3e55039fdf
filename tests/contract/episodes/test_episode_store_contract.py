"""Contract of every episode store; add yours to STORES."""

import asyncio
from collections.abc import Callable

import pytest

from qguide.server.episodes.state import EpisodeChange, Outcome, ScoredState, ServedEpisode
from qguide.server.episodes.store import EpisodeStore, MemoryEpisodeStore

STORES: dict[str, Callable[[], EpisodeStore]] = {"memory": lambda: MemoryEpisodeStore(max_bytes=10**6, ttl_s=3600)}

FULL = ServedEpisode(
    id="e/1 ünï",
    steps=2,
    last=ScoredState(state="ab", q_value=0.1 + 0.2, q_model="demo@1"),
    before=ScoredState(state="cd", q_value=-1e-300, q_model="demo@0"),
    outcome=Outcome(reward=0.5, terminated=False, observation="end"),
)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> EpisodeStore:
    """A fresh, empty store of each kind."""
    return STORES[request.param]()


def one_more(episode: ServedEpisode | None) -> EpisodeChange:
    known = episode or ServedEpisode(id="e")
    return EpisodeChange(known.model_copy(update={"steps": known.steps + 1}))


def recorded(episode: ServedEpisode | None) -> EpisodeChange:
    """One more step with a record, which is its number."""
    known = one_more(episode).episode
    row = str(known.steps).encode()
    longer = {"records": known.records + 1, "record_bytes": known.record_bytes + len(row)}
    return EpisodeChange(known.model_copy(update=longer), row)


async def test_what_was_never_kept_is_not_there(store: EpisodeStore) -> None:
    assert await store.get("e") is None


async def test_an_update_is_what_is_read_afterwards(store: EpisodeStore) -> None:
    assert await store.update(FULL.id, lambda _: EpisodeChange(FULL)) == FULL
    assert await store.get(FULL.id) == FULL
    assert await store.get("other") is None


async def test_a_change_sees_the_last_one(store: EpisodeStore) -> None:
    seen: list[ServedEpisode | None] = []

    def change(episode: ServedEpisode | None) -> EpisodeChange:
        seen.append(episode)
        return one_more(episode)

    await store.update("e", change)
    assert (await store.update("e", change)).steps == 2
    assert [episode and episode.steps for episode in seen] == [None, 1]


async def test_a_change_that_raises_keeps_what_was(store: EpisodeStore) -> None:
    def refuse(episode: ServedEpisode | None) -> EpisodeChange:
        raise ValueError("no")

    await store.update("e", one_more)
    for episode_id in ("e", "new"):
        with pytest.raises(ValueError, match="no"):
            await store.update(episode_id, refuse)
    kept = await store.get("e")
    assert kept is not None
    assert kept.steps == 1
    assert await store.get("new") is None


async def test_no_change_is_lost_when_many_come_at_once(store: EpisodeStore) -> None:
    await asyncio.gather(*(store.update("e", one_more) for _ in range(20)))
    kept = await store.get("e")
    assert kept is not None
    assert kept.steps == 20


async def test_records_are_kept_in_order_until_the_state_has_none(store: EpisodeStore) -> None:
    assert list(await store.records("e")) == []
    for _ in range(3):
        await store.update("e", recorded)
    await store.update("other", recorded)
    assert list(await store.records("e")) == [b"1", b"2", b"3"]
    await store.update("e", lambda _: EpisodeChange(ServedEpisode(id="e", steps=3)))
    assert list(await store.records("e")) == []
    assert list(await store.records("other")) == [b"1"]
