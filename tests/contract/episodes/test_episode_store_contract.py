"""Contract of every episode store; add yours to STORES."""

import asyncio
from collections.abc import Callable

import pytest

from qnet.types import Message
from server.episodes.state import Episode, Mark, Offer, Outcome
from server.episodes.store import EpisodeStore, MemoryEpisodeStore

STORES: dict[str, Callable[[], EpisodeStore]] = {
    "memory": lambda: MemoryEpisodeStore(max_bytes=10**6, ttl_s=3600),
}

FULL = Episode(
    id="e/1 ünï",
    steps=2,
    last=Mark(state="ab", q_value=0.1 + 0.2, q_model="demo@1"),
    before=Mark(state="cd", q_value=-1e-300, q_model="demo@0"),
    messages=(Message("user", "task\n“x”"), Message("assistant", "a"), Message("user", "o")),
    offers=(Offer(at=1, q_values={"a": 0.5, "b": -0.25}, chosen="a", q_model="demo@1"),),
    outcome=Outcome(reward=0.5, terminated=False, observation="end"),
)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> EpisodeStore:
    """A fresh, empty store of each kind."""
    return STORES[request.param]()


def one_more(episode: Episode | None) -> Episode:
    known = episode or Episode(id="e")
    return known.model_copy(update={"steps": known.steps + 1})


async def test_what_was_never_kept_is_not_there(store: EpisodeStore) -> None:
    assert await store.get("e") is None


async def test_an_update_is_what_is_read_afterwards(store: EpisodeStore) -> None:
    assert await store.update(FULL.id, lambda _: FULL) == FULL
    assert await store.get(FULL.id) == FULL
    assert await store.get("other") is None


async def test_a_change_sees_the_last_one(store: EpisodeStore) -> None:
    seen: list[Episode | None] = []

    def change(episode: Episode | None) -> Episode:
        seen.append(episode)
        return one_more(episode)

    await store.update("e", change)
    assert (await store.update("e", change)).steps == 2
    assert [episode and episode.steps for episode in seen] == [None, 1]


async def test_a_change_that_raises_keeps_what_was(store: EpisodeStore) -> None:
    def refuse(episode: Episode | None) -> Episode:
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
