"""Scrapes share one page a second, which is rendered beside the event loop."""

import asyncio
import re
import threading
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client import Metric
from prometheus_client.registry import Collector

from qguide.server.observability.exposition import Exposition
from qguide.server.observability.metrics import Metrics
from qguide.server.settings.learning import LearningSettings, mark_of


class Counted(Collector):
    """Counts how often it is rendered, and in which threads."""

    def __init__(self, metrics: Metrics) -> None:
        self.times = 0
        self.threads: set[int] = set()
        metrics.registry.register(self)
        self.times = 0  # the registry reads the names of what it registers

    def collect(self) -> Iterator[Metric]:
        """Nothing of its own."""
        self.times += 1
        self.threads.add(threading.get_ident())
        return iter(())


async def test_scrapes_of_one_second_are_rendered_once_and_not_on_the_loop() -> None:
    metrics, now_s = Metrics(), 0.0
    counted = Counted(metrics)
    exposition = Exposition(metrics, LearningSettings(), clock=lambda: now_s)
    pages = await asyncio.gather(*(exposition.page() for _ in range(50)))
    assert len(set(pages)) == 1
    assert counted.times == 1
    now_s = 0.99
    assert await exposition.page() == pages[0]
    assert counted.times == 1
    counted.threads.clear()
    now_s = 1.0
    metrics.prompt_tokens.inc(7)
    assert b"qguide_prompt_tokens_total 7.0" in await exposition.page()
    assert counted.times == 2
    assert threading.get_ident() not in counted.threads


async def test_gauges_of_the_load_are_read_on_the_loop() -> None:
    metrics, threads = Metrics(), set[int]()

    def waiting() -> int:
        threads.add(threading.get_ident())
        return 3

    metrics.watch_load(waiting=waiting, running=lambda: 1, cache_share=lambda: 0.5)
    assert b"qguide_requests_waiting 3.0" in await Exposition(metrics, LearningSettings()).page()
    assert threads == {threading.get_ident()}


async def test_a_scrape_that_is_given_up_ends_no_other() -> None:
    exposition = Exposition(Metrics(), LearningSettings())
    first, second = (asyncio.create_task(exposition.page()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert b"qguide_requests_total" in await second


async def test_a_page_that_cannot_be_rendered_is_rendered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    exposition = Exposition(metrics, LearningSettings())
    with monkeypatch.context() as broken:
        broken.setattr(metrics, "read_load", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await exposition.page()
    assert b"qguide_requests_total" in await exposition.page()


def test_a_thousand_scrapes_cost_a_few_pages(client: TestClient) -> None:
    app = client.app
    assert isinstance(app, FastAPI)
    app.state.exposition = Exposition(app.state.metrics, LearningSettings())
    counted = Counted(app.state.metrics)
    answers = [client.get("/metrics") for _ in range(300)]
    assert {answer.status_code for answer in answers} == {200}
    assert counted.times < 100


async def test_a_keys_page_has_the_series_of_its_own_group_and_of_the_whole_server() -> None:
    metrics = Metrics()
    settings = LearningSettings(learn_groups={"ada": "shop", "bob": "shop"})
    groups = {key: settings.group_of(key) for key in ("ada", "bob", "eve")}
    for key, group in groups.items():
        metrics.count_request("/v1/act", 200, 0.1, key=key, tokens=1)
        metrics.learning_fits.labels(group, "licensed").inc()
        metrics.count_episode(f"learned@1{mark_of(group)}", 1.0)
    metrics.count_episode("shop@1", 1.0)
    exposition = Exposition(metrics, settings)

    whole, ada, eve = [(await exposition.page(key)).decode() for key in (None, "ada", "eve")]
    for page in (whole, ada, eve):
        assert 'qguide_requests_total{route="/v1/act",status="200"} 3.0' in page
        assert 'qguide_episodes_total{q_model="shop@1"} 1.0' in page
    marks = {
        "key": re.compile(r'key="(\w+)"'),
        "group": re.compile(r'group="(.+?)"'),
        "q_model": re.compile('learned@[^"]+'),
    }
    seen = [{label: set(mark.findall(page)) for label, mark in marks.items()} for page in (whole, ada, eve)]
    shop, alone = (f"learned@1{mark_of(group)}" for group in ("+shop", "eve"))
    assert seen[0] == {"key": {"ada", "bob", "eve"}, "group": {"+shop", "eve"}, "q_model": {shop, alone}}
    assert seen[1] == {"key": {"ada", "bob"}, "group": {"+shop"}, "q_model": {shop}}
    assert seen[2] == {"key": {"eve"}, "group": {"eve"}, "q_model": {alone}}
