"""The playground in a real browser, against a real server.

The policy's replies are a script with markup in it; Q comes from the scripted Q model.
"""

import json
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.server.app import create_app
from qguide.server.q_models.registry import Models
from qguide.server.settings.settings import Settings
from tests.support.serving import serving_app
from tests.unit.server.conftest import FAKES, models_of

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
SCORER = ScriptedScorer({"to desk": 0.75, "desk({": 0.75, "onerror": 0.5, "look": 0.25})


class Page:
    """A browser tab, addressed by what a person sees in it."""

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
        # One script and not one call per element, which the page may redraw in between.
        script = "return [...document.querySelectorAll(arguments[0])].map(one => one.innerText)"
        return [str(text) for text in self.driver.execute_script(script, selector)]

    def text(self, element_id: str) -> str:
        return str(self[element_id].text)

    def until(self, happens: Any) -> Any:
        # An element that the page has redrawn is looked up again.
        wait = WebDriverWait(self.driver, WAIT_S, ignored_exceptions=(StaleElementReferenceException,))
        return wait.until(lambda _: happens())

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

    def code(self, language: str, part: str = "act") -> str:
        """The code that "Copy as" makes from the fields."""
        self[f"{part}-{language}"].click()
        self.until(lambda: self[f"{part}-code-box"].is_displayed())
        return str(self[f"{part}-code"].get_property("value"))

    def curl(self) -> str:
        """The command that "Copy as curl" makes from the fields."""
        return self.code("curl")

    def copied(self) -> dict[str, Any]:
        """The body in it."""
        body: dict[str, Any] = json.loads(shlex.split(self.curl())[-1])
        return body

    def run(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One headless Chromium for all tests of a process."""
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

    with serving_app(create_app(settings, build=build)) as url:
        yield url


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server without keys whose replies are those above."""
    with served() as root:
        yield root


@pytest.fixture
def page(driver: Any, url: str) -> Page:
    driver.get(f"{url}/playground/icon.svg")
    driver.execute_script("sessionStorage.clear()")  # the episode of the test before
    page = Page(driver, url).open()
    page.console()
    return page
