"""Step records of episodes that servers share through a real Redis: each is written once."""

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import cast

from redis.asyncio import Redis

from qguide.qnet.types import Message
from qguide.server.episodes.recorder import EpisodeRecorder
from qguide.server.episodes.redis_store import RedisEpisodeStore
from qguide.server.episodes.service import Episodes
from qguide.server.episodes.state import Outcome, Transcript, read_transcript
from qguide.server.observability.metrics import Metrics
from qguide.server.redis.client import RedisLink
from tests.support.long_episodes import CANDIDATE_BYTES, CANDIDATES, history_at, offer_at, take_step
from tests.support.redis_server import RedisServer
from tests.support.redis_users import stores, until

PLACE = "/e"
"""The episode `e` of a caller without a key."""
ROOM = 10**8
FIRST, LAST = 5, 60


def recording(stores: Sequence[RedisEpisodeStore], folder: Path) -> list[Episodes]:
    recorder = EpisodeRecorder(folder, max_file_bytes=10**9, max_files=9)
    return [Episodes(store, recorder, Metrics()) for store in stores]


async def transcript(store: RedisEpisodeStore) -> Transcript:
    return read_transcript(await store.records(PLACE))


def transcript_of(steps: int) -> Transcript:
    return Transcript(history_at(steps - 1), tuple(map(offer_at, range(steps))))


async def moved_bytes(client: "Redis") -> int:
    """Bytes that Redis has received and sent so far."""
    stats = await client.info("stats")
    return cast(int, stats["total_net_input_bytes"] + stats["total_net_output_bytes"])


async def test_a_step_of_a_long_episode_moves_as_many_bytes_as_one_of_a_short_episode(
    link: RedisLink, tmp_path: Path
) -> None:
    taking = cycle(recording(stores(link, max_bytes=ROOM), tmp_path))
    costs = []
    for step, episodes in enumerate(islice(taking, LAST + 1)):
        before = await moved_bytes(link.client)
        await episodes.begin_step("e")
        await take_step(episodes, step)
        costs.append(await moved_bytes(link.client) - before)
    assert costs[FIRST] > CANDIDATES * CANDIDATE_BYTES
    # Each server reads the step of the other one, and nothing twice.
    assert costs[LAST] < 1.5 * costs[FIRST]


async def test_servers_that_take_turns_record_every_step_once(link: RedisLink, tmp_path: Path) -> None:
    one, two = stores(link, max_bytes=ROOM)
    servers = recording((one, two), tmp_path)
    for step, episodes in enumerate(islice(cycle(servers), 7)):
        await take_step(episodes, step)
    assert await transcript(one) == await transcript(two) == transcript_of(7)
    assert (await servers[1].close("e", Outcome(reward=1.0))).episode.recorded
    assert (await servers[0].close("e", Outcome(reward=1.0))).episode.recorded
    [offers] = tmp_path.glob("offers-*.jsonl")
    assert len(offers.read_text().splitlines()) == 7


async def test_what_was_asked_without_tools_before_the_first_step_is_forgotten_by_every_server(
    link: RedisLink, tmp_path: Path
) -> None:
    kept = stores(link, max_bytes=ROOM)
    one, two = recording(kept, tmp_path)
    for plan in ("First", "Then"):
        offer = offer_at(0).model_copy(update={"at": 1})
        await two.end_step("e", (Message("user", f"{plan}, write a plan."),), offer)
    for step, episodes in enumerate((one, two, one)):
        await episodes.end_step("e", history_at(step), offer_at(step), tools=True)
        for store in kept:
            assert await transcript(store) == transcript_of(step + 1)


async def test_a_server_alone_has_the_steps_of_the_others_too(
    redis: RedisServer, link: RedisLink, tmp_path: Path
) -> None:
    kept = stores(link, max_bytes=ROOM)
    one, two = recording(kept, tmp_path)
    await take_step(one, 0)
    await take_step(two, 1)
    redis.kill()
    await take_step(two, 2)
    assert not link.up
    assert await transcript(kept[1]) == transcript_of(3)
    redis.start()
    await until(link, up=True)
    await take_step(two, 3)  # Redis has forgotten everything, and is told
    assert await transcript(kept[0]) == transcript_of(4)
    await take_step(one, 4)
    assert await transcript(kept[1]) == transcript_of(5)


async def test_steps_that_two_servers_took_apart_are_not_mixed(
    redis: RedisServer, link: RedisLink, tmp_path: Path
) -> None:
    kept = stores(link, max_bytes=ROOM)
    one, two = recording(kept, tmp_path)
    await take_step(one, 0)
    await take_step(two, 1)
    redis.kill()
    apart = offer_at(1).model_copy(update={"asked": "meanwhile"})
    await one.end_step("e", history_at(1), apart)
    await take_step(two, 2)
    redis.start()
    await until(link, up=True)
    await take_step(two, 3)
    assert await transcript(kept[0]) == transcript_of(4)
    await take_step(one, 4)
    own = await kept[0]._own.records(PLACE)
    assert read_transcript(own) == transcript_of(5), "its copy follows the longer one"


async def test_an_episode_larger_than_a_servers_memory_is_whole_in_redis(link: RedisLink, tmp_path: Path) -> None:
    small, large = stores(link, max_bytes=ROOM)
    small._own.max_bytes = 2 * CANDIDATES * CANDIDATE_BYTES
    servers = recording((small, large), tmp_path)
    for step, episodes in enumerate(islice(cycle(servers), 6)):
        await take_step(episodes, step)
    assert await transcript(small) == transcript_of(6)
    assert small._own.nbytes == 0


async def test_records_that_redis_lost_are_no_record(link: RedisLink, tmp_path: Path) -> None:
    kept = stores(link, max_bytes=ROOM)
    one, two = recording(kept, tmp_path)
    for step in range(3):
        await take_step(one, step)
    [key] = await link.client.keys("qguide:episodes:*")
    await link.client.hdel(key, "1")
    closed = await two.close("e", Outcome(reward=1.0))
    assert not closed.episode.recorded
    assert closed.not_recorded == "the texts of its steps were not kept"
