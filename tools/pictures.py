"""`make pictures`: the page's pictures in results/, and the moving one of a game for the README.

Needs chromium and chromedriver on PATH, and the packages of the extras `dev` and `report`. The
server is started here, with the models that ship and a folder of its own for what it records.
"""

import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

RESULTS: Final = Path(__file__).parents[1] / "results"
_PORT: Final = 8791
_URL: Final = f"http://127.0.0.1:{_PORT}"
_WAIT_S: Final = 1800
_FLAGS: Final = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
_RACE_GAMES: Final = 20
_GAME: Final = 37
"""A game that guidance alone wins, by a choice at its second step."""
_ALONE: Final = """
const others = ".top, .about, #knows, #play-form, #play .head:has(h1), #play .note";
for (const one of document.querySelectorAll(others)) one.hidden = true;
"""
"""Leaves the game and its verdict."""
_FRAMES: Final = 14
_FRAME_MS: Final = 700
_LAST_MS: Final = 4000


@contextmanager
def _server(folder: Path) -> Iterator[None]:
    """A server with the models that ship, which records and lists episodes."""
    recorded = {"QGUIDE_ADMIN": "true", "QGUIDE_EPISODES_DIR": str(folder)}
    command = [sys.executable, "-m", "qguide", "serve", "--port", str(_PORT)]
    process = subprocess.Popen(command, env=os.environ | recorded)
    try:
        while not _is_up():
            if process.poll() is not None:
                raise SystemExit("the server did not start; its log says why")
            time.sleep(1)
        yield
    finally:
        process.terminate()
        process.wait()


def _is_up() -> bool:
    try:
        return httpx.get(f"{_URL}/healthz").is_success
    except httpx.TransportError:
        return False


@contextmanager
def _browser(profile: Path, width: int, height: int, scheme: str = "light") -> Iterator[Any]:
    """A headless Chromium; a narrow one is a phone."""
    options = webdriver.ChromeOptions()
    for flag in (*_FLAGS, f"--window-size={width},{height}", f"--user-data-dir={profile}"):
        options.add_argument(flag)
    # Named, so that Selenium asks nobody which to take.
    options.binary_location = shutil.which("chromium") or sys.exit("chromium is not on PATH")
    driver = shutil.which("chromedriver") or sys.exit("chromedriver is not on PATH")
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        yield browser
    finally:
        browser.quit()


class _Page:
    """The page in a browser."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser

    def open(self, part: str) -> None:
        self.browser.get("about:blank")
        self.browser.get(f"{_URL}/playground#{part}")
        self.until(lambda: self.text("served"))

    def text(self, element_id: str) -> str:
        return str(self.browser.find_element(By.ID, element_id).text)

    def click(self, element_id: str) -> None:
        self.browser.find_element(By.ID, element_id).click()

    def fill(self, form: str, name: str, value: object) -> None:
        field = self.browser.find_element(By.CSS_SELECTOR, f"#{form} [name={name}]")
        field.clear()
        field.send_keys(str(value))

    def until(self, happens: Callable[[], object]) -> None:
        WebDriverWait(self.browser, _WAIT_S, poll_frequency=0.05).until(lambda _: happens())

    def shot(self) -> Image.Image:
        return Image.open(io.BytesIO(self.browser.get_screenshot_as_png())).convert("RGB")

    def save(self, name: str) -> None:
        # 256 colours are enough for text and bars, and a third of the bytes.
        self.shot().quantize(256).save(RESULTS / f"{name}.png", optimize=True)


def _act(page: _Page) -> None:
    page.open("act")
    page.click("act-button")
    page.until(lambda: page.text("answer-title").startswith("Step"))


def _record() -> None:
    """Three episodes of the server's games, guided, with their outcomes."""
    with httpx.Client(base_url=_URL, timeout=_WAIT_S) as client:
        for game in (_GAME, 46, 94):
            _play(client, game)


def _play(client: httpx.Client, game: int) -> None:
    replies: list[str] = []
    state = client.post("/v1/games/play", json={"game": game, "replies": replies}).json()
    messages = list(state["opening"])
    while not state["ended"] and len(replies) < 40:
        body = {"messages": messages, "episode_id": f"game-{game}", "seed": game}
        reply = client.post("/v1/act", json=body).json()["action"]
        replies.append(reply)
        state = client.post("/v1/games/play", json={"game": game, "replies": replies}).json()
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": state["observation"]}]
    end = {"reward": float(state["won"]), "observation": state["observation"]}
    client.post(f"/v1/episodes/game-{game}/outcome", json=end).raise_for_status()


def _race(page: _Page) -> None:
    page.open("race")
    page.until(lambda: page.text("race-games"))
    page.fill("race-form", "games", _RACE_GAMES)
    page.click("race-button")
    page.until(lambda: page.text("race-status").startswith("Done"))
    page.browser.execute_script("scrollTo(0, 0)")


def _game(page: _Page) -> list[Image.Image]:
    """Frames of the game while it is played, to its end."""
    page.open("play")
    page.until(lambda: page.text("play-games"))
    page.fill("play-form", "game", _GAME)
    page.click("play-button")
    page.browser.execute_script(_ALONE)
    frames: list[Image.Image] = []
    seen = ""
    while not frames or page.text("play-status") == "Playing …":
        now = page.text("played")
        if now != seen and len(frames) < _FRAMES:
            frames.append(page.shot())
        seen = now
    return [*frames, page.shot()]


def main() -> None:
    """Make all pictures."""
    with tempfile.TemporaryDirectory() as folder, _server(Path(folder) / "served"):
        with _browser(Path(folder) / "narrow", 900, 940) as browser:
            first, *others = [frame.quantize(64) for frame in _game(_Page(browser))]
            durations = [_FRAME_MS] * len(others) + [_LAST_MS]
            first.save(
                RESULTS / "game.gif", save_all=True, append_images=others, duration=durations, loop=0, optimize=True
            )
        with _browser(Path(folder) / "wide", 1280, 1000) as browser:
            page = _Page(browser)
            _act(page)
            page.save("playground")
            _record()
            page.open("records")
            page.until(lambda: page.text("live-count").startswith("3"))
            page.save("playground_records")
            _race(page)
            page.save("playground_race")


if __name__ == "__main__":
    main()
