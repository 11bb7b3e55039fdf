"""`python -m benchmarks episodes` measures each store at each length, and says what has grown."""

from pathlib import Path

import pytest

from benchmarks.episodes.episodes import EpisodesBench, EpisodesRun, episodes_bench
from qguide.qnet.errors import ConfigError
from tests.support.redis_server import RedisServer, require_redis


def test_bytes_of_a_step_are_as_many_at_every_length_in_both_stores(tmp_path: Path) -> None:
    require_redis()
    redis, told = RedisServer(tmp_path), list[str]()
    redis.start()
    try:
        config = EpisodesBench(output=tmp_path / "run.json", steps=(5, 60), samples=3, redis_url=redis.url)
        run = episodes_bench(config, advance=told.append)
    finally:
        redis.kill()
    assert told == ["memory", "redis"]
    assert [(row.store, row.step) for row in run.rows] == [(store, step) for store in told for step in (5, 60)]
    assert all(run.growth(row) < 1.5 for row in run.rows)
    size = config.candidates * config.candidate_bytes
    assert all((row.redis_bytes or row.held_bytes) > size for row in run.rows)
    assert run.complete
    assert run == EpisodesRun.model_validate_json(config.output.read_text())


def test_a_redis_that_is_not_there_is_an_error_and_the_run_incomplete(tmp_path: Path) -> None:
    config = EpisodesBench(output=tmp_path / "run.json", steps=(3,), redis_url="redis://127.0.0.1:1/0")
    with pytest.raises(ConfigError, match="redis_url"):
        episodes_bench(config)
    run = EpisodesRun.model_validate_json(config.output.read_text())
    assert (run.complete, [row.store for row in run.rows]) == (False, ["memory"])
