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
MOST_STEPS, FEW_STEPS = 12, 5


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
    found: list[str] = page.run("[...document.querySelectorAll('.tokens-drawn')].map((one) => one.textContent)")
    return found


def lanes(page: Page, what: str) -> dict[str, str]:
    return {one: page.all(f"[data-method={one}] {what}")[0].text for one in METHODS}


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_three_ways_play_the_same_games(page_of_race: Page) -> None:
    page = page_of_race
    assert page.text("race-games") == "2 games of alfworld"
    page.field("steps", str(FEW_STEPS), "race-form")
    page.field("candidates", "3", "race-form")
    page["race-button"].click()
    page.until(lambda: len(page.all(".lane")) == 3)
    while "Done." not in page.text("race-status"):  # each wait has a limit, the race has none
        seen = drawn_tokens(page)
        page.until(lambda seen=seen: drawn_tokens(page) != seen or "Done." in page.text("race-status"))
    wins = {one: number(text.split(" of ")[0]) for one, text in lanes(page, ".wins").items()}
    assert {text.split(" of ")[1] for text in lanes(page, ".wins").values()} == {str(GAMES)}
    for one in METHODS:
        assert len(page.all(f"[data-method={one}] .games .won")) == wins[one]
        assert len(page.all(f"[data-method={one}] .games li")) == GAMES
    steps = {one: number(text) for one, text in lanes(page, ".steps").items()}
    assert all(GAMES <= count <= GAMES * FEW_STEPS for count in steps.values())
    drawn = {one: number(text) for one, text in lanes(page, ".tokens-drawn").items()}
    assert drawn["random"] / steps["random"] > drawn["greedy"] / steps["greedy"], "M draws a step"
    scored = lanes(page, ".tokens-scored")
    assert (scored["greedy"], scored["random"]) == ("none", "none")
    assert number(scored["guided"]) > 0
    assert page.text("race-difference").startswith("2 games that both have played: too few")
    page.all("[data-method=guided] .games button")[1].click()
    title = page.texts(".whole-game h3")[0]
    assert title == f"Game 1: {page.texts('[data-method=guided] .games button')[1]}"
    assert len(page.all(".whole-game li")) == number(title.split(" in ")[1])
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


def test_a_difference_is_told_with_how_sure_it_is(page: Page) -> None:
    told = page.driver.execute_async_script(
        "import('/playground/difference.js').then(({ differenceOf, differenceText }) => {"
        " const wins = (count, all) => Array.from({ length: all }, (_, at) => at < count);"
        " const text = (a, b) => differenceText('A', 'B', differenceOf(a, b));"
        " arguments[0]([text(wins(9, 9), wins(0, 9)), text(wins(30, 40), wins(20, 40)),"
        "  text(wins(20, 40), wins(30, 40)), text(wins(11, 20), wins(10, 30))]) })"
    )
    # Agresti and Min (2005): b and c with half a pair each, over n + 2.
    assert told == [
        "9 games that both have played: too few to compare A with B.",
        "40 games that both have played: A − B +25 points (95 %: 10 to 38); A is better.",
        "40 games that both have played: A − B −25 points (95 %: −38 to −10); A is worse.",
        "20 games that both have played: A − B +5 points (95 %: −8 to 17); which is better cannot be told yet.",
    ]


@pytest.mark.slow
def test_a_game_forks_where_q_overrules_the_greedy_reply(page_of_race: Page) -> None:
    page = page_of_race
    page["tab-play"].click()
    page.field("game", "1", "play-form")
    page.field("steps", str(MOST_STEPS), "play-form")
    page["play-button"].click()
    page.until(lambda: "Playing" not in page.text("play-status") and page.text("play-status"))
    assert "lettuce" in page.text("play-task")
    ways = page.texts("#branches-played h2")
    assert sorted(ways) == ["Greedy", "Guided"]
    assert page.text("fork").startswith(f"Step {len(page.all('#trunk li')) + 1}: Q overrules")
    (greedy,) = page.texts("#fork p code")
    first = {one: page.texts(f"#branches-played [data-method={one}] code")[0] for one in METHODS[::2]}
    assert first["greedy"] == greedy != first["guided"]
    assert first["guided"] == page.texts("#fork .chosen code")[0]
    assert page.text("play-status") == "Neither wins. Guided lost in 12 steps, greedy lost in 12."
    assert page.console() == []


def test_the_servers_own_game_answers_an_action(page_of_race: Page) -> None:
    page = page_of_race
    page["tab-act"].click()
    before = page.turns
    page["new-game"].click()
    page.until(lambda: page.turns != before)
    assert "Your task is to" in page.turns[0]
    page.act()
    page.until(lambda: page["observation"].get_property("value"))
    assert page.text("game-status") == "Answered by game 0 of the server."
    seen = page["observation"].get_property("value")
    page["take"].click()
    assert page.turns[-1] == seen
    page.act(step=2)
    page.until(lambda: page["observation"].get_property("value"))
    page["add-turn"].click()
    assert page.console() == []


def test_a_server_without_games_says_how_to_get_them(page: Page) -> None:
    page["tab-race"].click()
    assert not page["race-form"].is_displayed()
    assert "QGUIDE_PLAYGROUND_GAMES" in page.text("race-none")
    asked = httpx.post(f"{page.root}/v1/games/play", json={"game": 0, "replies": []})
    assert asked.status_code == 404
