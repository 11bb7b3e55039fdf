"""Branches of an episode in the playground, its link, and what a reload keeps."""

import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.e2e.playground.conftest import EVIL, REPLIES, Page

LOOK, EVIL_REPLY, DESK = REPLIES
IN_LINK = "#episode="


def take(page: Page, observed: str, *, action: str = "") -> None:
    """Take the picked action, or another one."""
    if action:
        (row,) = (one for one in page.all("#answer label.row") if f"\n{action}" in f"\n{one.text}")
        row.click()
    page["observation"].send_keys(observed)
    page["take"].click()


def states(page: Page) -> list[str]:
    return [text.replace("\n", " ") for text in page.texts("#branches .state")]


def go_to(page: Page, state: str) -> None:
    (button,) = (one for one in page.all("#branches .state") if state in one.text)
    button.click()


def test_another_candidate_is_taken_after_undo_and_both_branches_stay(page: Page) -> None:
    start = page.turns
    page.act()
    assert not page["undo"].is_enabled()
    take(page, "You are at desk 1.")
    assert not page["answer"].is_displayed()
    page.act(step=2)
    first_id = page.copied()["episode_id"]
    page["undo"].click()
    assert page.turns == start
    assert page.text("answer-title") == "Step 1: 5 candidates", "its answer is kept"
    assert "tried" in page.texts("#answer .candidate.chosen .count")
    take(page, "You see nothing.", action="look")
    assert page.turns == [*start, LOOK, "You see nothing."]
    assert len(page.all("#branches .forks > li")) == 2
    assert [one.split()[0] for one in states(page)] == ["Start:", "go", "look"]
    body = page.copied()
    assert body["episode_id"] != first_id, "the server takes an episode's steps in order"
    assert body["previous_q"] == 0.25, "which the server knows of the other branch alone"
    page.act(step=2)
    go_to(page, "go to desk 1")
    assert page.driver.switch_to.active_element.get_attribute("aria-current") == "step"
    assert page.turns == [*start, DESK, "You are at desk 1."]
    assert page.text("answer-title") == "Step 2: 5 candidates"
    assert page.copied()["episode_id"] == first_id

    page["undo"].click()
    take(page, "You are at desk 1.", action="go to desk 1")
    assert len(states(page)) == 3, "the same step leads to the same state"
    page["branches-alone"].click()
    assert [one.split()[0] for one in states(page)] == ["Start:", "go"]
    assert page.turns == [*start, DESK, "You are at desk 1."]
    assert page.console() == []


@pytest.mark.slow
def test_turns_that_were_edited_are_another_beginning(page: Page) -> None:
    start = page.turns
    page.act()
    page.all("#turns textarea")[-1].send_keys(" And a mug.")
    page["act-button"].click()
    page.until(lambda: len(states(page)) == 2)
    page.until(lambda: page["answer"].is_displayed())
    assert states(page)[1].endswith("And a mug.")
    page.all("#branches .state")[0].click()
    assert page.turns == start


@pytest.mark.slow
def test_a_reload_keeps_the_episode_and_what_was_typed(page: Page) -> None:
    page.act()
    take(page, EVIL, action="open")
    page.act(step=2)
    page.field("num_candidates", "3")
    page.all("#turns textarea")[0].send_keys(" Typed.")
    before = page.turns
    page.driver.refresh()
    page.until(lambda: page.text("served"))
    assert page.turns == before
    assert page.text("answer-title") == "Step 2: 5 candidates"
    assert page["act-form"].find_element("name", "num_candidates").get_property("value") == "3"
    assert [one.split()[0] for one in states(page)] == ["Start:", "open"]
    assert page.all("main img, main script") == []
    page["undo"].click()
    assert page.text("answer-title") == "Step 1: 5 candidates"
    assert page.console() == []


def link_of(page: Page) -> str:
    page["act-link"].click()
    page.until(lambda: "the link holds the whole episode" in page.text("act-status"))
    return str(page["link"].get_property("value"))


def open_link(page: Page, link: str) -> None:
    """Open it as another person does: nothing is kept there."""
    page.driver.get(f"{page.root}/playground/icon.svg")
    page.driver.execute_script("sessionStorage.clear()")
    page.driver.get(link)
    page.until(lambda: page.text("served"))


def test_a_link_opens_the_episode_elsewhere(page: Page) -> None:
    page.act()
    take(page, EVIL, action="open")
    link = link_of(page)
    assert link.startswith(f"{page.root}/playground#episode=")
    before, branches = page.turns, states(page)
    open_link(page, link)
    page.until(lambda: page.text("act-status") == "The link's episode is open.")
    assert (page.turns, states(page)) == (before, branches)
    assert page.driver.current_url == f"{page.root}/playground#act"
    asked = page.run("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert not [one for one in asked if IN_LINK in one or "v1/act" in one]
    page.driver.get(link)
    page.until(lambda: len(states(page)) == 4)  # beside what is there


def hash_of(value: Any) -> str:
    deflate = zlib.compressobj(wbits=-15)
    packed = deflate.compress(json.dumps(value).encode()) + deflate.flush()
    return IN_LINK + urlsafe_b64encode(packed).decode().rstrip("=")


STATE = {
    "parent": None,
    "turns": [{"role": "user", "content": "a"}],
    "taken": None,
    "answer": None,
    "second": None,
    "episode": "e",
}


BROKEN = (
    (f"{IN_LINK}abc", "it is incomplete or was changed; copy the whole link"),
    (hash_of({"states": [], "at": 0}), "it has no states, or shows none of them"),
    (f"{IN_LINK}%%%", "it is incomplete or was changed; copy the whole link"),
    (hash_of({"states": [STATE | {"parent": 0}], "at": 0}), "state 1 does not follow an"),
    (
        hash_of({"states": [STATE | {"turns": [{"role": "root", "content": ""}]}], "at": 0}),
        'state 1 has a turn that is none: the role of a turn is "root"',
    ),
    (
        hash_of({"states": [STATE | {"answer": {"candidates": []}}], "at": 0}),
        "state 1 has an answer without candidates",
    ),
    (hash_of("x" * 20_000_000), "the episode is longer than the page takes"),
)
"""Links and what is said of them; no two that follow each other are told alike."""


def test_broken_links_say_what_is_wrong_and_change_nothing(page: Page) -> None:
    before = page.turns
    for address, told in BROKEN:
        page.driver.get(f"{page.root}/playground{address}")  # of the page that is open
        page.until(lambda told=told: page.text("act-error").startswith(f"No episode in this link: {told}"))
        assert page.turns == before
    open_link(page, f"{page.root}/playground{BROKEN[0][0]}")
    page.until(lambda: page["act-error"].is_displayed())
    assert page.turns == before
    page.act()


def test_a_link_that_was_made_here_can_be_read_by_others(page: Page) -> None:
    page.act()
    packed = link_of(page).partition(IN_LINK)[2]
    raw = zlib.decompress(urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), wbits=-15)
    episode = json.loads(raw)
    assert [state["parent"] for state in episode["states"]] == [None]
    assert len(episode["states"][0]["answer"]["candidates"]) == 5


def test_act_is_within_five_stops_of_the_tab_key(page: Page) -> None:
    page.run("document.activeElement.blur()")
    body = page.driver.find_element("tag name", "body")
    body.send_keys(Keys.TAB)
    stops = [page.driver.switch_to.active_element]
    while len(stops) < 5:
        stops[-1].send_keys(Keys.TAB)
        stops.append(page.driver.switch_to.active_element)
    assert "act-button" in [stop.get_attribute("id") for stop in stops]
    page["act-button"].send_keys(Keys.ENTER)
    page.until(lambda: page["answer"].is_displayed())


def test_the_parts_are_tabs_of_which_arrow_keys_choose(page: Page) -> None:
    page["tab-act"].send_keys(Keys.ARROW_RIGHT)
    page.until(lambda: page["play"].is_displayed())
    active = page.driver.switch_to.active_element
    assert active.get_attribute("id") == "tab-play"
    active.send_keys(Keys.HOME)
    page.until(lambda: page["act-form"].is_displayed())
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    page.until(lambda: page["race"].is_displayed())
