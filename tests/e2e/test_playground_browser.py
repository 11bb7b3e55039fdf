"""The playground in a real browser, against a real server: what people do there, to the end.

The policy's replies are a script with markup in it; Q comes from the scripted Q model.
"""

import json
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from qnet.batching import DeviceThread
from qnet.errors import ScorerUnavailableError
from qnet.policies.scripted import ScriptedPolicy
from qnet.scoring import ScriptedScorer
from qnet.types import ScoreRequest, ScoreResult
from server.app import create_app
from server.keys import create_key
from server.models import Models
from server.settings import Settings
from tests.running import running
from tests.unit.server.conftest import FAKES, models_of

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

WAIT_S = 30
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1100",
)
EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
REPLIES = (
    "Thought: I should look around first.\nAction: look",
    f"Thought: {EVIL}\nAction: open {EVIL}",
    "Thought: The desk is a good place to start.\nAction: go to desk 1",
)
SCORER = ScriptedScorer({"desk": 0.75, "onerror": 0.5, "look": 0.25})


class Page:
    """A tab of the browser, by what a person sees in it."""

    def __init__(self, driver: Any, root: str) -> None:
        self.driver = driver
        self.root = root

    def open(self, part: str = "") -> "Page":
        self.driver.get(f"{self.root}/playground{part}")
        self.until(lambda: self.text("served"))
        return self

    def __getitem__(self, element_id: str) -> WebElement:
        found: WebElement = self.driver.find_element(By.ID, element_id)
        return found

    def all(self, selector: str) -> list[WebElement]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def texts(self, selector: str) -> list[str]:
        return [one.text for one in self.all(selector)]

    def text(self, element_id: str) -> str:
        return str(self[element_id].text)

    def until(self, happens: Any) -> Any:
        return WebDriverWait(self.driver, WAIT_S).until(lambda _: happens())

    def field(self, name: str, value: str, form: str = "act-form") -> WebElement:
        field = self[form].find_element(By.NAME, name)
        field.clear()
        field.send_keys(value)
        return field

    def act(self, step: int = 1) -> None:
        self["act-button"].click()
        self.until(lambda: self.text("answer-title").startswith(f"Step {step}:"))

    @property
    def turns(self) -> list[str]:
        return [str(one.get_property("value")) for one in self.all("#turns textarea")]

    @property
    def picked(self) -> str:
        return str(self.all("#answer input:checked")[0].get_property("value"))

    def curl(self) -> str:
        """What "Copy as curl" makes of the fields."""
        self["act-curl"].click()
        self.until(lambda: self["curl"].is_displayed())
        return str(self["curl"].get_property("value"))

    def copied(self) -> dict[str, Any]:
        """The body in it."""
        body: dict[str, Any] = json.loads(shlex.split(self.curl())[-1])
        return body

    def run(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One headless Chromium for all tests."""
    chromium = os.environ.get("QGUIDE_CHROMIUM") or shutil.which("chromium")
    chromedriver = shutil.which("chromedriver")
    if not chromium or not chromedriver:
        pytest.skip("chromium or chromedriver is not on PATH; Debian: chromium, chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        yield browser
    finally:
        browser.quit()


@contextmanager
def served(settings: Settings = FAKES, scorer: ScriptedScorer = SCORER) -> Iterator[str]:
    def build(_: Settings) -> Models:
        return models_of(ScriptedPolicy(REPLIES), scorer, DeviceThread())

    with running(create_app(settings, build=build)) as url:
        yield url


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server without keys whose replies are those above."""
    with served() as root:
        yield root


@pytest.fixture
def page(driver: Any, url: str) -> Page:
    page = Page(driver, url).open()
    page.console()  # of the test before
    return page


def test_an_episode_step_by_step(page: Page) -> None:
    assert page.text("served") == "scripted, judged by scripted@0"
    first = page.turns
    assert len(first) == 3
    assert "heat some apple" in first[0]
    page.act()
    # The script's replies come round: 5 candidates, 3 of them different.
    assert page.texts("#answer code")[0] == "go to desk 1"
    assert page.texts("#answer .q") == ["0.7500", "0.5000", "0.2500"]
    assert page.texts("#answer .candidate.chosen code") == ["go to desk 1"]
    assert page.texts("#answer .candidate.chosen .mark") == ["chosen"]
    assert sorted(page.texts("#answer .count")) == ["× 2", "× 2"]
    assert page.picked == REPLIES[2]
    assert page.text("answer-facts") == "best 0.7500 · mean 0.5500 · gap 0.2000"
    assert page.text("answer-notes").startswith("Guided by scripted@0: chosen because it has the")
    assert [row.split()[0] for row in page.texts("#answer-usage tbody tr")] == [
        "Draw",
        "Score",
        "All",
    ]
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
        "(() => { try { document.body.innerHTML = '<b>'; return 'done' }"
        " catch (error) { return error.name } })()"
    )
    assert tried == "TypeError"


def test_a_refusal_is_shown_as_it_is_and_nothing_typed_is_lost(page: Page) -> None:
    page.field("num_candidates", "9")
    page.all("#turns textarea")[-1].send_keys(" And a mug.")
    typed = page.turns
    page["act-button"].click()
    page.until(lambda: page["act-error"].is_displayed())
    told = page.text("act-error")
    assert told.startswith("400 invalid_candidates num_candidates is 9; ask for 1 to 8 request ")
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
    assert not page["curl-box"].is_displayed()
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


def offer(depth: int, **other: Any) -> dict[str, Any]:
    row = {
        "task_id": "served:1",
        "depth": depth,
        "candidates": [
            {"content": "Action: look", "q_value": 0.1 * depth},
            {"content": f"Action: {EVIL}", "q_value": -0.5},
        ],
        "chosen": "Action: look",
        "taken": "Action: look",
        "q_model": "shop@v1",
        "policy": "agent",
        "outcome_reward": 1.0,
    }
    return row | other


def tree(*observations: str) -> dict[str, Any]:
    nodes = [{"action": "Action: look", "observation": seen} for seen in observations[1:]]
    return {"task_id": "served:1", "first_observation": observations[0], "nodes": nodes}


JUDGED = {
    "task_id": "game-7",
    "kind": "heat",
    "reward": 0.0,
    "decisions": [
        {
            "step": 4,
            "after_idle": False,
            "replies": ["Action: go", "Action: stay"],
            "draws": [4, 1],
            "q_values": [0.25, 0.5],
            "steps": [3, 9],
            "idle": [False, True],
            "chosen": 1,
        }
    ],
}


def written(path: Path, rows: Sequence[object]) -> str:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_recorded_episodes_are_read_here_and_broken_lines_are_told(
    page: Page, tmp_path: Path
) -> None:
    page.open("#records")
    rows: list[object] = [
        offer(1),
        "{half",
        offer(2, taken="Action: wait"),
        {"method": "greedy"},
        offer(1, outcome_reward=0.0, candidates=[{"content": 1, "q_value": 0.0}]),
        offer(1, outcome_reward=0.0),
        offer(3, outcome_reward=0.0),
        JUDGED | {"decisions": [{"step": 0}]},
        JUDGED,
    ]
    files = [
        written(tmp_path / "offers.jsonl", rows),
        written(tmp_path / "trees.jsonl", [tree("A room.", "A desk.", "A mug.", f"{EVIL} end")]),
    ]
    asked = page.run("performance.getEntriesByType('resource').length")
    page["files"].send_keys("\n".join(files))
    page.until(lambda: page.text("records-status") == "3 episodes.")
    assert page.text("bad-count") == "4 lines left out"
    page["bad-count"].click()
    assert page.texts("#bad-lines li") == [
        "offers.jsonl, line 2: no JSON",
        "offers.jsonl, line 4: holds no candidates",
        "offers.jsonl, line 5: candidates is missing or not what it should be",
        "offers.jsonl, line 8: decisions is missing or not what it should be",
    ]
    assert page.text("episode-facts") == "reward 1 · 2 steps with candidates · served:1"
    assert page.texts("#step-bars .q") == ["0.1000", "−0.5000"]
    assert page.texts("#step-bars .candidate.chosen .mark") == ["chosen", "taken"]
    assert not page["step-seen"].is_displayed(), "no tree has these actions"
    page["step-on"].click()
    assert page.text("step-number") == "2"
    assert "Taken instead: Action: wait" in page.text("step-bars")
    assert not page["step-on"].is_enabled()

    Select(page["episode"]).select_by_index(1)
    assert page.text("step-seen") == "A room."
    page["step"].send_keys(Keys.ARROW_RIGHT)
    page.until(lambda: page.text("step-number") == "3")
    assert (page.text("step-seen"), page.text("step-after")) == ("A mug.", f"{EVIL} end")
    assert page.all("main img, main script") == []

    Select(page["episode"]).select_by_index(2)
    assert page.text("step-number") == "5"
    assert page.texts("#step-bars .q") == ["0.5000", "0.2500"]
    assert page.texts("#step-bars .count") == ["then 9 steps", "× 4", "then 3 steps"]
    assert page.run("performance.getEntriesByType('resource').length") == asked, "sent nowhere"
    assert page.console() == []

    page["files"].clear()
    page["files"].send_keys(files[1])
    page.until(lambda: page.text("records-status").startswith("0 episodes. Trees hold no"))


def test_the_files_opened_last_are_shown_and_can_be_opened_again(
    page: Page, tmp_path: Path
) -> None:
    page.open("#records")
    slow = written(tmp_path / "slow.jsonl", [offer(1), offer(2), JUDGED])
    fast = tmp_path / "fast.jsonl"
    page.run(
        "void (() => { const read = File.prototype.text; File.prototype.text = async function () {"
        " if (this.name === 'slow.jsonl') await new Promise((go) => { window.go = go });"
        " return read.call(this) } })()"
    )
    page["files"].send_keys(slow)
    page.until(lambda: page.run("typeof window.go === 'function'"))
    page["files"].send_keys(written(fast, [JUDGED]))
    page.until(lambda: page.text("records-status") == "1 episode.")
    page.driver.execute_async_script("window.go(); setTimeout(arguments[0], 300)")
    assert page.text("records-status") == "1 episode."
    assert page.text("opened") == "fast.jsonl"
    page["files"].send_keys(written(fast, [JUDGED, JUDGED | {"task_id": "game-8"}]))
    page.until(lambda: page.text("records-status") == "2 episodes.")


def test_what_the_recorder_writes_can_be_read(driver: Any, tmp_path: Path) -> None:
    folder = tmp_path / "episodes"
    with served(FAKES.model_copy(update={"episodes_dir": folder})) as url:
        page = Page(driver, url).open()
        page.act()
        page["observation"].send_keys("You are at desk 1.")
        page["take-act"].click()
        page.until(lambda: page.text("answer-title").startswith("Step 2:"))
        episode_id = page.copied()["episode_id"]
        end = {"reward": 1.0, "observation": "You found it."}
        page.driver.execute_async_script(
            "fetch(arguments[0], {method: 'POST', body: arguments[1],"
            " headers: {'content-type': 'application/json'}}).then(arguments[2])",
            f"/v1/episodes/{episode_id}/outcome",
            json.dumps(end),
        )
        page.open("#records")
        page["files"].send_keys("\n".join(str(path) for path in sorted(folder.glob("*.jsonl"))))
        page.until(lambda: page.text("records-status") == "1 episode.")
        assert not page["bad"].is_displayed()
        assert page.text("step-number") == "2", "the second action: the example has one already"
        assert page.texts("#step-bars .candidate.chosen code") == ["go to desk 1"]
        assert page.text("step-after") == "You are at desk 1."


class Dead(ScriptedScorer):
    """A Q model that cannot score."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        raise ScorerUnavailableError("the device is gone")


def test_an_answer_without_guidance_says_why(driver: Any) -> None:
    with served(FAKES.model_copy(update={"fallback": "first"}), Dead({})) as url:
        page = Page(driver, url).open()
        page.act()
        assert page.text("answer-notes").startswith(
            "Not guided: chosen because no Q could be given and it came first."
        )
        assert "the device is gone" in page.text("answer-notes")
        assert page.texts("#answer .q") == ["no Q", "no Q", "no Q"]
        assert page.text("answer-facts") == "no Q was read"
    with served(scorer=Dead({})) as url:
        page = Page(driver, url).open()
        page["act-button"].click()
        page.until(lambda: page["act-error"].is_displayed())
        assert page.text("act-error").startswith("503 scorer_unavailable")
        assert "Try again in 1 s." in page.text("act-error")
    page["act-button"].click()  # the server has ended
    page.until(lambda: "is it running?" in page.text("act-error"))


def test_a_key_is_asked_for_kept_in_the_tab_and_never_copied(driver: Any, tmp_path: Path) -> None:
    keys_file = tmp_path / "keys.json"
    key = create_key(keys_file, "ada", requests_per_minute=3)
    with served(FAKES.model_copy(update={"keys_file": keys_file})) as url:
        page = Page(driver, url).open()
        assert page.text("served") == "This server wants a key."
        page["act-button"].click()
        page.until(lambda: page.text("act-error").startswith("401 unauthorized there is no API"))
        page["key"].send_keys(key, Keys.ENTER)
        page.until(lambda: page.text("served") == "scripted, judged by scripted@0")
        page.act()
        copied = page.curl()
        assert key not in copied
        assert '"Authorization: Bearer $QGUIDE_KEY"' in copied
        assert key not in page.driver.current_url
        assert page.run("localStorage.length") == 0
        assert page.run("document.cookie") == ""
        page["act-button"].click()
        page.until(lambda: page["act-button"].is_enabled())
        page["act-button"].click()
        page.until(lambda: page["act-error"].is_displayed())
        assert page.text("act-error").startswith("429 rate_limited ada has made its 3 requests")
        assert "Try again in " in page.text("act-error")
        page.open()
        assert page["key"].get_property("value") == key, "a reload keeps it"
        page["key"].clear()
        page["key"].send_keys(Keys.ENTER)
        page.until(lambda: "401" in page.text("served"))
        assert page.run("sessionStorage.length") == 0


def test_of_two_keys_the_later_one_decides_what_is_shown(driver: Any, tmp_path: Path) -> None:
    keys_file = tmp_path / "keys.json"
    key = create_key(keys_file, "ada")
    with served(FAKES.model_copy(update={"keys_file": keys_file})) as url:
        page = Page(driver, url).open()
        page.run(
            "void (() => { const ask = window.fetch; window.fetch = (...given) => {"
            " window.fetch = ask; return new Promise((done) => {"
            " window.go = () => done(ask(...given)) }) } })()"
        )
        page["key"].send_keys("wrong", Keys.ENTER)
        page.until(lambda: page.run("typeof window.go === 'function'"))
        page["key"].clear()
        page["key"].send_keys(key, Keys.ENTER)
        page.until(lambda: page.text("served") == "scripted, judged by scripted@0")
        page.driver.execute_async_script("window.go(); setTimeout(arguments[0], 300)")
        assert page.text("served") == "scripted, judged by scripted@0"


def test_it_asks_no_other_server_and_fits_a_phone(page: Page) -> None:
    page.act()
    asked = page.run("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert {urlsplit(one).netloc for one in asked} == {urlsplit(page.root).netloc}
    size = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for part in ("#act", "#score", "#records"):
            page.all(f"nav a[href='{part}']")[0].click()
            assert page.run("document.documentElement.scrollWidth") <= 360, part
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
