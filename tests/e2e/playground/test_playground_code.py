"""Requests copied as code, tool calls, and a second Q model in the playground."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.support.ui import Select

from qguide.server.app import create_app
from qguide.server.http.keys import create_key
from tests.e2e.playground.conftest import Page
from tests.support.serving import ROOT, serving_app
from tests.unit.server.conftest import FAKES

TASK = 'Say "it\'s\\n" — naïve 🙂 \\ and </script>'
CALL = {"id": "call_9", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
HISTORY = [
    {"role": "user", "content": TASK},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "A desk.", "tool_call_id": "call_9"},
]


def run(command: list[str], **variables: str) -> Any:
    """The JSON that a command prints."""
    path = f"{ROOT}:{ROOT / 'clients' / 'python' / 'src'}"
    env = os.environ | {"PYTHONPATH": path} | variables
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_task(page: Page) -> None:
    field = page.all("#turns textarea")[0]
    page.driver.execute_script(
        "arguments[0].value = arguments[1];arguments[0].dispatchEvent(new Event('input', { bubbles: true }))",
        field,
        TASK,
    )


def test_what_is_copied_as_python_acts_as_the_page_does(page: Page) -> None:
    write_task(page)
    page.field("num_candidates", "2")
    copied = page.copied()
    assert copied["messages"][0]["content"] == TASK
    assert None not in copied.values()
    answer = run([sys.executable, "-c", page.code("python")])
    assert len(answer["candidates"]) == 2
    page.all("[data-closes=act-code-box]")[0].click()
    assert not page["act-code-box"].is_displayed()
    page["tab-score"].click()
    scores = run([sys.executable, "-c", page.code("python", "score")])
    assert len(scores["scores"]) == 2
    curl = shutil.which("curl")
    if curl:
        scored = run(["sh", "-c", page.code("curl", "score")])
        # What the answer leaves out is None in the client's.
        told = [{k: v for k, v in one.items() if v is not None} for one in scores["scores"]]
        assert scored["scores"] == told


def test_what_is_copied_as_typescript_asks_for_the_same(page: Page, tmp_path: Path) -> None:
    """Over a stand-in for the package that prints what it is asked for; the package itself is
    tested by test_typescript_client.py."""
    node = shutil.which("node")
    if not node:
        pytest.skip("no node on PATH")
    write_task(page)
    package = tmp_path / "node_modules" / "qguide-client"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"type": "module", "exports": "./index.js"}')
    (package / "index.js").write_text(
        "export class QGuide { constructor(url) { this.url = url }"
        " async act(messages, options) { return { url: this.url, messages, ...options } } }"
    )
    (tmp_path / "main.mjs").write_text(page.code("typescript"))
    asked = run([node, str(tmp_path / "main.mjs")])
    assert asked == {"url": page.root, **page.copied()}


@pytest.mark.slow
def test_a_key_is_a_variable_of_every_language(driver: Any, tmp_path: Path) -> None:
    key = create_key(tmp_path / "keys.json", "ada")
    settings = FAKES.model_copy(update={"keys_file": tmp_path / "keys.json"})
    with serving_app(create_app(settings)) as url:
        page = Page(driver, url).open()
        page["key"].send_keys(key, "\n")
        page.until(lambda: "judged by" in page.text("served"))
        for language in ("curl", "python", "typescript"):
            copied = page.code(language)
            assert key not in copied
            assert "QGUIDE_KEY" in copied
        answer = run([sys.executable, "-c", page.code("python")], QGUIDE_KEY=key)
        assert answer["guided"]


def test_tool_calls_are_fields_of_their_own(page: Page) -> None:
    for _ in page.turns:
        page.all("#turns .remove")[0].click()
    page["add-turn"].click()
    page["add-turn"].click()
    assert page.all("#turns li.turn")[1].get_attribute("data-role") == "user"
    Select(page.all("#turns .speaker")[0]).select_by_value("user")
    Select(page.all("#turns .speaker")[1]).select_by_value("assistant")
    write_task(page)
    page.all("#turns li.turn:last-child .calls-place > button")[0].click()
    name, call_id = page.all("#turns .call input")
    name.send_keys("look")
    call_id.clear()
    call_id.send_keys("call_9")
    arguments = page.all("#turns .call textarea")[0]
    arguments.clear()
    arguments.send_keys('{"at"')
    assert arguments.get_attribute("aria-invalid") == "true"
    assert "is no JSON" in page.all("#turns .call")[0].text
    arguments.send_keys(": 1}")
    assert arguments.get_attribute("aria-invalid") == "false"
    page["add-turn"].click()
    page.driver.switch_to.active_element.send_keys("A desk.")
    assert page.copied()["messages"] == HISTORY
    page.act()
    page.driver.refresh()
    page.until(lambda: page.text("served"))
    assert page.copied()["messages"] == HISTORY


def test_a_candidate_may_call_tools(page: Page) -> None:
    page["tab-score"].click()
    page.all("#candidates .calls-place > button")[1].click()
    page.driver.switch_to.active_element.send_keys("desk")
    page["score-button"].click()
    page.until(lambda: page["scored"].is_displayed())
    assert page.texts("#scored .q")[0] == "0.7500"
    assert "Action: desk({})" in page.texts("#scored code")[0]


def test_a_drawn_tool_call_is_answered_by_its_result(page: Page) -> None:
    """The scripted policy calls no tools; an answer of a server whose policy does stands here."""
    page.act()
    page.run(
        "void (() => { const ask = window.fetch; window.fetch = async (...given) => {"
        " const answer = await (await ask(...given)).json();"
        f" answer.candidates[answer.chosen].message = {json.dumps(HISTORY[1])};"
        " return new Response(JSON.stringify(answer)) } })()"
    )
    page["act-button"].click()
    page.until(lambda: 'look({"at": 1})' in page.texts("#answer code"))
    assert page.texts("#observations label") == ['Result of look({"at": 1})']
    page["observation"].send_keys("A desk.")
    page["take"].click()
    assert page.copied()["messages"][-2:] == HISTORY[1:]


@pytest.fixture(scope="module")
def page_of_two(driver: Any) -> Any:
    with serving_app(create_app(FAKES)) as url:
        yield Page(driver, url)


@pytest.mark.slow
def test_two_q_models_stand_side_by_side(driver: Any, page_of_two: Page) -> None:
    page = page_of_two.open()
    Select(page["act-form"].find_element("name", "compare")).select_by_value("other")
    page.act()
    page.until(lambda: page.all("#answer .track.b"))
    distinct = len(page.all("#answer li.candidate"))
    assert len(page.all("#answer .q")) == 2 * distinct
    assert len(page.all("#answer .track.b")) == distinct
    told = page.text("answer-notes")
    assert "A demo@" in told
    assert "B other@" in told
    assert "Both prefer the same candidate" in told
    assert len(page.texts("#answer .legend")) == 2
    page.driver.refresh()
    page.until(lambda: page.text("served"))
    assert len(page.all("#answer .track.b")) == distinct, "a reload keeps it"
    page["tab-score"].click()
    Select(page["score-form"].find_element("name", "compare")).select_by_value("other")
    page["score-button"].click()
    page.until(lambda: page["scored"].is_displayed())
    assert len(page.all("#scored .track.b")) == 2
