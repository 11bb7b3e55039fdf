"""The list of the episodes that the server has recorded, in the playground."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from qguide.server.http.keys import create_key
from tests.e2e.playground.conftest import EVIL, Page, served
from tests.unit.server.conftest import FAKES

STEP_S = 60
"""A record is on the disk before its outcome is answered, which may take a busy machine seconds."""


def record(url: str, name: str, task: str, reward: float) -> None:
    """An episode of two steps."""
    messages = [{"role": "user", "content": task}]
    with httpx.Client(base_url=url, timeout=STEP_S) as client:
        for _ in range(2):
            body = {"messages": messages, "episode_id": name, "num_candidates": 3}
            answer = client.post("/v1/act", json=body).raise_for_status().json()
            messages.append({"role": "assistant", "content": answer["action"]})
            messages.append({"role": "user", "content": "Nothing happens."})
        ended = client.post(f"/v1/episodes/{name}/outcome", json={"reward": reward})
    assert ended.json()["recorded"], ended.text


def rewards(page: Page) -> list[str]:
    """Of the list, read at once because it is drawn again when it changes."""
    found: list[str] = page.run("[...document.querySelectorAll('#live-list .reward')].map((one) => one.textContent)")
    return found


@pytest.fixture
def recording(driver: Any, tmp_path: Path) -> Iterator[Page]:
    settings = FAKES.model_copy(update={"episodes_dir": tmp_path / "served", "admin": True})
    with served(settings) as url:
        yield Page(driver, url)


def test_recorded_episodes_appear_while_the_list_is_looked_at(recording: Page) -> None:
    url = recording.root
    record(url, "a", "You see a desk 1. Your task is to: find the mug.", 1.0)
    page = recording.open("#records")
    page.until(lambda: page.text("live-count") == "1 recorded.")
    record(url, "b", f"A room.\n\nYour task is to: {EVIL}.", 0.0)
    page.until(lambda: page.text("live-count") == "2 recorded.")
    assert rewards(page) == ["reward 0.00", "reward 1.00"]
    assert page.texts("#live-list .title")[0] == f"Your task is to: {EVIL}."
    assert page.all("main img, main script") == []
    spoken = page.all("#live-list svg")[1].get_attribute("aria-label")
    assert spoken == "Q from step to step: 0.75, 0.75"

    search = page["live-form"].find_element("name", "search")
    search.send_keys("MUG")
    page.until(lambda: rewards(page) == ["reward 1.00"])
    search.send_keys(Keys.BACKSPACE * len("MUG"))
    page.until(lambda: rewards(page) == ["reward 0.00", "reward 1.00"])
    Select(page["live-form"].find_element("name", "rewarded")).select_by_value("false")
    page.until(lambda: rewards(page) == ["reward 0.00"])
    page.all("#live-list button")[0].click()
    page.until(lambda: page["recorded"].is_displayed())
    assert page.text("episode-facts").startswith("reward 0 · 2 steps with candidates")
    assert page.text("step-seen").startswith("A room.")
    assert page.texts("#step-bars .candidate.chosen .mark") == ["chosen", "taken"]
    assert not page["bad"].is_displayed()
    assert page.console() == []


def test_the_list_needs_an_admin_key(driver: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    plain, root = create_key(keys, "ada"), create_key(keys, "root", admin=True)
    more = {"episodes_dir": tmp_path / "served", "admin": True, "keys_file": keys}
    with served(FAKES.model_copy(update=more)) as url:
        page = Page(driver, url).open("#records")
        page["key"].send_keys(plain, "\n")
        page.until(lambda: page.text("live-error").startswith("403 forbidden the key 'ada' is not"))
        page["key"].clear()
        page["key"].send_keys(root, "\n")
        page.until(lambda: page.text("live-count") == "0 recorded.")
        assert not page["live-error"].is_displayed()


def test_a_server_that_records_nothing_has_no_list(page: Page) -> None:
    page["tab-records"].click()
    assert not page["live"].is_displayed()
    assert page["files"].is_displayed()
