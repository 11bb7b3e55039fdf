"""The race in the playground: the embedded models on ALFWorld's generated games."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from qguide.commands.playground_games import build_games
from qguide.server.app import create_app
from qguide.server.settings.settings import Settings
from tests.e2e.playground.conftest import Page
from tests.support.serving import serving_app

METHODS = ("greedy", "random", "guided")
GAMES = 2
MOST_STEPS = 12


@pytest.fixture(scope="module")
def racing() -> Iterator[str]:
    app = create_app(Settings(), games=build_games({"name": "alfworld", "count": GAMES}))
    with serving_app(app) as url:
        yield url


@pytest.fixture
def page_of_race(driver: Any, racing: str) -> Page:
    driver.get("about:blank")  # else the page of the test before is still there
    page = Page(driver, racing).open("#race")
    page.until(lambda: page["race-form"].is_displayed())
    return page


def drawn_tokens(page: Page) -> list[str]:
    """Of each lane, read at once because lanes are drawn again at every step."""
    found: list[str] = page.run(
        "[...document.querySelectorAll('.tokens-drawn')].map((one) => one.textContent)"
    )
    return found


def lanes(page: Page, what: str) -> dict[str, str]:
    return {one: page.all(f"[data-method={one}] {what}")[0].text for one in METHODS}


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_three_ways_play_the_same_games(page_of_race: Page) -> None:
    page = page_of_race
    assert page.text("race-games") == "2 games of alfworld"
    page.field("steps", str(MOST_STEPS), "race-form")
    page.field("candidates", "3", "race-form")
    page["race-button"].click()
    page.until(lambda: len(page.all(".lane")) == 3)
    while "Done." not in page.text("race-status"):  # each wait has a limit, the race has none
        seen = drawn_tokens(page)
        page.until(
            lambda seen=seen: drawn_tokens(page) != seen or "Done." in page.text("race-status")
        )
    wins = {one: number(text.split(" of ")[0]) for one, text in lanes(page, ".wins").items()}
    assert {text.split(" of ")[1] for text in lanes(page, ".wins").values()} == {str(GAMES)}
    for one in METHODS:
        assert len(page.all(f"[data-method={one}] .games .won")) == wins[one]
        assert len(page.all(f"[data-method={one}] .games li")) == GAMES
    steps = {one: number(text) for one, text in lanes(page, ".steps").items()}
    assert all(GAMES <= count <= GAMES * MOST_STEPS for count in steps.values())
    drawn = {one: number(text) for one, text in lanes(page, ".tokens-drawn").items()}
    assert drawn["random"] / steps["random"] > drawn["greedy"] / steps["greedy"], "M draws a step"
    scored = lanes(page, ".tokens-scored")
    assert (scored["greedy"], scored["random"]) == ("none", "none")
    assert number(scored["guided"]) > 0
    assert page.console() == []


def test_a_race_can_be_stopped_and_a_wrong_number_is_told(page_of_race: Page) -> None:
    page = page_of_race
    page.field("games", str(GAMES + 1), "race-form")
    page["race-button"].click()
    assert page.all(".lane") == [], "there are fewer games"
    page.field("games", "1", "race-form")
    page["race-button"].click()
    page.until(lambda: drawn_tokens(page) not in ([], ["0", "0", "0"]))
    page["race-stop"].click()
    page.until(lambda: page.text("race-status") == "Stopped.")
    assert page["race-button"].is_enabled()


def test_what_random_picks_depends_on_the_seed_alone(page: Page) -> None:
    picked = page.driver.execute_async_script(
        "import('/playground/methods.js').then(({ METHODS, randomOf, seedOf }) => {"
        " const random = METHODS[1]; const answer = { candidates: [1, 2, 3, 4, 5] };"
        " const picks = (seed) => Array.from({ length: 300 }, (_, step) =>"
        "  random.pick(answer, randomOf(seedOf(seed, 0, step))));"
        " arguments[0]([picks(1), picks(1), picks(2)]) })"
    )
    first, again, other = picked
    assert first == again != other
    counts = [first.count(index) for index in range(5)]
    assert sum(counts) == 300
    assert min(counts) > 30, counts


def test_a_server_without_games_says_how_to_get_them(page: Page) -> None:
    page["tab-race"].click()
    assert not page["race-form"].is_displayed()
    assert "QGUIDE_PLAYGROUND_GAMES" in page.text("race-none")
    asked = httpx.post(f"{page.root}/v1/games/play", json={"game": 0, "replies": []})
    assert asked.status_code == 404
