"""Messages of the playground when guidance or a key is missing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from qguide.qnet.errors import ScorerUnavailableError
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.qnet.types import ScoreRequest, ScoreResult
from qguide.server.http.keys import create_key
from tests.e2e.playground.conftest import Page, served
from tests.unit.server.conftest import FAKES


class Dead(ScriptedScorer):
    """A Q model that cannot score."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        raise ScorerUnavailableError("the device is gone")


def test_an_answer_without_guidance_says_why(driver: Any) -> None:
    with served(FAKES.model_copy(update={"fallback": "first"}), Dead({})) as url:
        page = Page(driver, url).open()
        page.act()
        assert page.text("answer-notes").startswith(
            "Not guided: chosen because no Q could be given and it was drawn most often."
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
        page.until(lambda: page.text("act-error").startswith("401 unauthorized the request has"))
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
        assert page.text("act-error").startswith("429 rate_limited ada has used up its 3 requests")
        assert "Try again in " in page.text("act-error")
        page.open()
        assert page["key"].get_property("value") == key, "a reload keeps it"
        page["key"].clear()
        page["key"].send_keys(Keys.ENTER)
        page.until(lambda: "401" in page.text("served"))
        assert page.run("sessionStorage.getItem('qguide.key')") is None


@pytest.mark.slow
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
