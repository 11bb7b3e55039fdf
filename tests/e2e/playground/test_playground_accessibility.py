"""Accessibility of the playground, judged by axe-core in both colour schemes.

axe-core comes from npm, pinned in axe/package-lock.json; skipped without npm or its registry.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qguide.commands.playground_games import build_games
from qguide.server.app import create_app
from tests.e2e.playground.conftest import Page
from tests.e2e.playground.test_playground_learning import learned
from tests.e2e.playground.test_playground_records import choice, written
from tests.support.serving import serving_app
from tests.unit.server.conftest import FAKES

PACKAGE = Path(__file__).parent / "axe"
STEP_S = 300
NO_NETWORK = re.compile(r"EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENOTFOUND|ENETUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT|E5\d\d")
UNREACHABLE = "npm's registry cannot be reached, and axe-core comes from there"
RUN = """
const done = arguments[arguments.length - 1];
axe.run(document).then(
  ({ violations, passes }) => done({
    passes: passes.length,
    violations: violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html.slice(0, 99))]),
  }),
  (error) => done({ failed: String(error) }),
);
"""


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core."""
    if shutil.which("npm") is None:
        pytest.skip("no npm on PATH, which axe-core comes from")
    folder = tmp_path_factory.mktemp("axe")
    shutil.copytree(PACKAGE, folder, dirs_exist_ok=True)
    command = ["npm", "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        done = subprocess.run(
            [*command, "--fetch-retries=1", "--fetch-timeout=20000"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=STEP_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(UNREACHABLE)
    if done.returncode and NO_NETWORK.search(done.stderr):
        pytest.skip(UNREACHABLE)
    assert done.returncode == 0, done.stderr
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.fixture(params=["light", pytest.param("dark", marks=pytest.mark.slow)])
def scheme(driver: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    features = [{"name": "prefers-color-scheme", "value": request.param}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    yield request.param
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def violations(page: Page, axe: str) -> Any:
    page.driver.set_script_timeout(STEP_S)
    page.driver.execute_script(axe)
    found = page.driver.execute_async_script(RUN)
    assert found.get("passes", 0) > 10, found
    return found["violations"]


def test_axe_sees_what_is_wrong(page: Page, axe: str) -> None:
    page.run("void document.querySelector('#turns textarea').removeAttribute('aria-label')")
    assert "label" in [name for name, _ in violations(page, axe)]


def test_axe_finds_nothing_wrong_with_an_episode(page: Page, axe: str, scheme: str) -> None:
    dark = page.run("matchMedia('(prefers-color-scheme: dark)').matches")
    assert dark is (scheme == "dark")
    assert violations(page, axe) == []
    for step in (1, 2):
        page.act(step=step)
        page["observation"].send_keys("You are at desk 1.")
        page["take"].click()
    page.act(step=3)
    page["undo"].click()
    page["act-curl"].click()
    page.all("#act-form summary")[0].click()
    page.all("#turns [data-role=assistant] .calls-place > button")[0].click()
    assert violations(page, axe) == []
    page.field("num_candidates", "99")
    page["act-button"].click()
    page.until(lambda: page["act-error"].is_displayed())
    assert violations(page, axe) == []


def test_axe_finds_nothing_wrong_with_scores(page: Page, axe: str, scheme: str) -> None:
    page["tab-score"].click()
    page["score-button"].click()
    page.until(lambda: page["scored"].is_displayed())
    page["score-python"].click()
    assert violations(page, axe) == []


def test_axe_finds_nothing_wrong_with_records(page: Page, axe: str, scheme: str, tmp_path: Path) -> None:
    page["tab-records"].click()
    row = {
        "task_id": "served:1",
        "depth": 1,
        "candidates": [{"content": "Action: look", "q_value": 0.5}, {"content": "Action: wait", "q_value": -0.5}],
        "chosen": "Action: look",
        "taken": "Action: wait",
        "outcome_reward": 1.0,
    }
    records = tmp_path / "offers-1.jsonl"
    records.write_text(f"{json.dumps(row)}\n{{half\n")
    page["files"].send_keys(str(records))
    page.until(lambda: page["recorded"].is_displayed())
    page["bad-count"].click()
    assert violations(page, axe) == []


def test_axe_finds_nothing_wrong_with_candidates_of_real_llms(
    page: Page, axe: str, scheme: str, tmp_path: Path
) -> None:
    page["tab-records"].click()
    page["files"].send_keys(written(tmp_path / "choices.jsonl", [choice(1, by_q=0, by_rule=1)]))
    page.until(lambda: page["choices"].is_displayed())
    assert violations(page, axe) == []


def test_axe_finds_nothing_wrong_with_what_is_learned(driver: Any, axe: str, scheme: str, tmp_path: Path) -> None:
    learned(tmp_path / "learning" / "_")
    settings = FAKES.model_copy(update={"learn": True, "episodes_dir": tmp_path, "admin": True})
    with serving_app(create_app(settings)) as url:
        page = Page(driver, url).open("#learning")
        page.until(lambda: "guiding since" in page.text("learning-sentence"))
        assert violations(page, axe) == []


def test_axe_finds_nothing_wrong_with_a_game_and_a_race(driver: Any, axe: str, scheme: str) -> None:
    app = create_app(FAKES, games=build_games({"name": "fake", "count": 2}))
    with serving_app(app) as url:
        page = Page(driver, url).open("#play")
        for part in ("play", "race"):
            page[f"tab-{part}"].click()
            page.until(lambda part=part: page[f"{part}-form"].is_displayed())
            page.field("steps", "3", f"{part}-form")
            page[f"{part}-button"].click()
            page.until(lambda part=part: page.text(f"{part}-status")[-1:] == ".")
            if part == "race":
                page.all(".games button")[0].click()
            assert violations(page, axe) == []
