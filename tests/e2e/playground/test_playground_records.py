"""The playground shows what was recorded, and sends it nowhere."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from tests.e2e.playground.conftest import EVIL, Page, served
from tests.unit.server.conftest import FAKES


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
    nodes = [
        {"id": number + 1, "parent": number, "action": "Action: look", "observation": seen}
        for number, seen in enumerate(observations[1:])
    ]
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


def test_recorded_episodes_are_read_here_and_broken_lines_are_told(page: Page, tmp_path: Path) -> None:
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
        "offers.jsonl, line 4: is no offer, tree, choice or row of choice-regret",
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
    page.until(lambda: page.text("records-status") == "0 episodes, 1 tree.")
    assert page.texts("#tree-list code") == ["look", "look", "look"]


@pytest.mark.slow
def test_the_files_opened_last_are_shown_and_can_be_opened_again(page: Page, tmp_path: Path) -> None:
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
        assert page.text("step-number") == "3", "the third action: the example has two already"
        assert page.texts("#step-bars .candidate.chosen code") == ["go to desk 1"]
        assert page.text("step-after") == "You are at desk 1."


def choice(number: int, *, by_q: int, by_rule: int) -> dict[str, Any]:
    """A choice whose first candidate is the right one."""
    offered = [("gpt-a", "f(1)", 0.7, 1.0), ("llama-b", EVIL, 0.2, 0.0)]
    return {
        "task_id": f"simple_{number}",
        "asked": f"Question {number}",
        "candidates": [
            {"model": m, "said": s, "answer": None, "q_value": q, "valid": True, "reward": r} for m, s, q, r in offered
        ],
        "by_q": [by_q],
        "by_rule": [by_rule],
    }


@pytest.mark.slow
def test_candidates_of_real_llms_are_shown_with_what_q_took_and_what_was_right(page: Page, tmp_path: Path) -> None:
    page.open("#records")
    rows = [choice(1, by_q=0, by_rule=0), choice(2, by_q=0, by_rule=1), choice(3, by_q=1, by_rule=0) | {"by_q": [2]}]
    page["files"].send_keys(written(tmp_path / "choices.jsonl", rows))
    page.until(lambda: page["choices"].is_displayed())
    assert page.text("records-status") == "2 choices of real LLMs."
    assert page.text("bad-count") == "1 line left out"
    figures = "Q 100.0 %, rule 50.0 %, random 50.0 %, the best 100.0 %"
    assert page.text("choices-facts") == f"reward over 2 choices: {figures}"
    assert page.text("choice-asked") == "Question 1"
    assert page.texts("#choice-candidates .outcome") == ["right", "wrong"]
    assert page.texts("#choice-candidates .model") == ["gpt-a", "llama-b"]
    assert page.texts("#choice-candidates .said")[1] == EVIL
    Select(page["choice-filter"]).select_by_value("gained")
    assert page.text("choice-asked") == "Question 2"
    marks = page.texts("#choice-candidates :is(.mark, .count)")
    assert marks == ["Q takes this", "the rule takes this"]
    Select(page["choice-filter"]).select_by_value("lost")
    assert page["choice-none"].is_displayed()
