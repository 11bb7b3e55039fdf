"""Drawing, choosing and scoring candidates in the playground."""

from urllib.parse import urlsplit

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from tests.e2e.playground.conftest import EVIL, REPLIES, Page


def test_an_episode_step_by_step(page: Page) -> None:
    assert page.text("served") == "scripted, judged by scripted@0"
    first = page.turns
    assert len(first) == 5
    assert "look at cellphone" in first[0]
    page.act()
    # The script's replies come round: 5 candidates, 3 of them different.
    assert page.texts("#answer code")[0] == "go to desk 1"
    assert page.texts("#answer .q") == ["0.7500", "0.5000", "0.2500"]
    assert page.texts("#answer .candidate.chosen code") == ["go to desk 1"]
    assert page.texts("#answer .candidate.chosen .mark") == ["chosen"]
    assert sorted(page.texts("#answer .count")) == ["× 2", "× 2"]
    assert page.picked == REPLIES[2]
    assert page.text("answer-facts") == "best 0.7500 · mean 0.5000 · gap 0.2500"
    assert page.text("answer-notes").startswith("Guided by scripted@0: chosen because it has the")
    assert [row.split()[0] for row in page.texts("#answer-usage tbody tr")] == ["Draw", "Score", "All"]
    assert not page["course"].is_displayed(), "one step is no course"

    (look,) = (one for one in page.all("#answer label.row") if "\nlook" in f"\n{one.text}")
    look.click()
    assert page.picked == REPLIES[0]
    page["take"].click()
    assert page.turns == first, "what the environment says is needed"
    page["observation"].send_keys("You see a desk 1.", Keys.CONTROL, Keys.ENTER)
    page.until(lambda: page.text("answer-title").startswith("Step 2:"))
    assert page.turns == [*first, REPLIES[0], "You see a desk 1."]
    assert page["course"].is_displayed()
    spoken = page.all("#course svg")[0].get_attribute("aria-label")
    assert spoken == "Q of the action taken: step 1 0.2500, step 2 0.7500"
    assert len(page.all("#course circle.taken")) == 2
    assert len(page.all("#course circle.offered")) == 10

    page["observation"].send_keys("You are at desk 1.")
    page["take"].click()
    assert not page["answer"].is_displayed()
    assert page.turns[-2:] == [REPLIES[2], "You are at desk 1."]
    page["act-over"].click()
    assert page.turns == first
    assert not page["course"].is_displayed()
    assert page.console() == []


def test_the_steps_of_an_episode_are_one_to_the_server(page: Page) -> None:
    """Adaptive M stops at a Q above the previous step's, which the episode alone knows."""
    for _ in range(2):  # the script's next reply then has a Q below its best
        page.all("#turns .remove")[-1].click()
    page.all("#act-form summary")[0].click()
    page["act-form"].find_element(By.NAME, "adaptive").click()
    page.field("num_candidates", "1")
    page.act()
    assert page.texts("#answer .q") == ["0.5000"]
    first = page.copied()
    page.field("num_candidates", "5")
    page["observation"].send_keys("You see a desk 1.")
    page["take-act"].click()
    page.until(lambda: page.text("answer-title") == "Step 2: 2 candidates")
    assert "Adaptive M did without 3 draws." in page.text("answer-notes")
    assert page.copied()["episode_id"] == first["episode_id"]
    page["act-over"].click()
    page.act()
    assert page.text("answer-title") == "Step 1: 5 candidates"
    assert page.copied()["episode_id"] != first["episode_id"]


def test_markup_of_a_model_is_text_and_does_nothing(page: Page) -> None:
    title = page.driver.title
    page.act()
    assert f"open {EVIL}" in page.texts("#answer code")
    assert EVIL in page.texts("#answer .thought")
    (evil,) = (one for one in page.all("#answer label.row") if "onerror" in one.text)
    evil.find_element(By.TAG_NAME, "input").click()
    page["observation"].send_keys(EVIL)
    page["take-act"].click()
    page.until(lambda: page.text("answer-title").startswith("Step 2:"))
    assert page.turns[-2:] == [REPLIES[1], EVIL]
    assert page.all("main img, main script") == []
    assert page.driver.title == title
    assert page.console() == []


def test_the_browser_would_refuse_markup_even_by_mistake(page: Page) -> None:
    """The header holds, should a line of ours ever go wrong."""
    tried = page.run(
        "(() => { try { document.body.innerHTML = '<b>'; return 'done' } catch (error) { return error.name } })()"
    )
    assert tried == "TypeError"


def test_a_refusal_is_shown_as_it_is_and_nothing_typed_is_lost(page: Page) -> None:
    page.field("num_candidates", "9")
    page.all("#turns textarea")[-1].send_keys(" And a mug.")
    typed = page.turns
    page["act-button"].click()
    page.until(lambda: page["act-error"].is_displayed())
    told = page.text("act-error")
    assert told.startswith("400 invalid_candidates num_candidates is 9; ask for 1 to 8 ")
    assert page.turns == typed
    page.field("num_candidates", "")
    page["act-button"].click()
    page.until(lambda: "422" in page.text("act-error"))
    assert "num_candidates" in page.text("act-error")
    page.field("num_candidates", "2").send_keys(Keys.ENTER)
    page.until(lambda: page.text("answer-title") == "Step 1: 2 candidates")
    assert not page["act-error"].is_displayed()


def test_a_number_that_is_none_is_told_and_not_sent(page: Page) -> None:
    asked = page.run("performance.getEntriesByType('resource').length")
    page.all("#act-form summary")[0].click()
    page.field("seed", "1e")
    page.all("#act-form summary")[0].click()
    for button in ("act-button", "act-curl"):
        page[button].click()
        assert page.text("act-error") == "Seed is no number; correct or empty it."
        assert page.driver.switch_to.active_element.get_attribute("name") == "seed"
    assert page.text("act-status") == ""
    assert not page["act-code-box"].is_displayed()
    assert page.run("performance.getEntriesByType('resource').length") == asked
    page.field("seed", "7")
    page.act()
    assert not page["act-error"].is_displayed()


def test_the_example_during_a_request_leaves_nothing_of_it(page: Page) -> None:
    page.run("void (window.fetch = () => new Promise(() => {}))")
    page["act-button"].click()
    assert page.text("act-status") == "Drawing and scoring …"
    page["example"].click()
    assert page.text("act-status") == ""
    assert page["act-button"].is_enabled()


def test_an_action_is_not_taken_in_other_turns_than_it_was_scored_in(page: Page) -> None:
    page.act()
    page.all("#turns textarea")[-1].send_keys(" And a mug.")
    page["observation"].send_keys("You are at desk 1.")
    edited = page.turns
    page["take-act"].click()
    assert page.text("act-status").startswith("Not taken: the turns are not those")
    assert page.turns == edited
    assert not page["answer"].is_displayed()
    assert page["act-button"].is_enabled(), "nothing is asked"
    page.act()
    page["take"].click()
    assert page.turns == [*edited, REPLIES[2], "You are at desk 1."], "what was typed is kept"


def test_own_candidates_get_their_q_in_the_state_that_is_shown(page: Page) -> None:
    page.all("nav a[href='#score']")[0].click()
    page.until(lambda: page["score"].is_displayed())
    assert not page["act"].is_displayed()
    page["add-candidate"].click()
    page.driver.switch_to.active_element.send_keys("Action: go to desk 1")
    Select(page["score-form"].find_element(By.NAME, "q_model")).select_by_value("scripted@0")
    page["score-button"].click()
    page.until(lambda: page["scored"].is_displayed())
    assert page.texts("#scored code")[0] == "go to desk 1"
    assert page.texts("#scored .q") == ["0.7500", "0.0000", "0.0000"]
    assert page.texts("#scored .candidate.chosen code") == ["go to desk 1"]
    page.all("#candidates .remove")[-1].click()
    page["add-candidate"].click()
    page["score-button"].click()
    page.until(lambda: page["score-error"].is_displayed())
    assert "candidates[2] is empty" in page.text("score-error")
    assert len(page.all("#candidates textarea")) == 3


def test_it_asks_no_other_server_and_fits_a_phone(page: Page) -> None:
    page.act()
    asked = page.run("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert {urlsplit(one).netloc for one in asked} == {urlsplit(page.root).netloc}
    size = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for part in ("#act", "#play", "#score", "#records", "#race"):
            page.all(f"nav a[href='{part}']")[0].click()
            assert page.run("document.documentElement.scrollWidth") <= 360, part
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
