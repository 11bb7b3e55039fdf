"""Episodes of coding agents, which name their session and know of no episodes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from qguide.server.app import create_app
from qguide.server.chat.fake_openai import FakeUpstream
from tests.support.serving import ROOT, serving_app
from tests.unit.server.conftest import Serve, settings_of

TASK = {"role": "user", "content": "You see a desk. Your task is to: take the mug."}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
LATER: list[dict[str, str]] = [TASK, {"role": "assistant", "content": "Action: look"}, {**TASK, "content": "A mug."}]
SESSION = "0198a5f2-7f4e-7a30-9f5b-3f1c2f0c8a11"
HOOK = ROOT / "clients" / "report_outcome.py"


def step(client: TestClient | httpx.Client, headers: dict[str, str], *, tools: bool = True, **body: Any) -> Any:
    asked: dict[str, Any] = {"messages": [TASK], "qguide": {"num_candidates": 2}} | body
    if tools:
        asked["tools"] = [TOOL]
    answer = client.post("/v1/chat/completions", json=asked, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["qguide"].get("episode_id")


def outcome(client: TestClient | httpx.Client, session: str, reward: float) -> Any:
    answer = client.post(f"/episodes/{session}/outcome", json={"reward": reward})
    return answer.json() | {"status": answer.status_code}


@pytest.mark.parametrize("header", ["X-Claude-Code-Session-Id", "X-Qwen-Code-Session-Id", "thread-id", "session_id"])
def test_the_header_of_an_agent_names_its_episode(guided: TestClient, header: str) -> None:
    assert step(guided, {header: SESSION}) == SESSION
    assert step(guided, {header: SESSION}, messages=LATER) == SESSION
    assert outcome(guided, SESSION, 1.0)["steps"] == 2


def test_a_key_for_the_prompts_cache_names_an_episode_too(guided: TestClient) -> None:
    assert step(guided, {}, prompt_cache_key=SESSION) == SESSION
    responses = {"input": [TASK], "prompt_cache_key": SESSION, "tools": [{"type": "function", **TOOL["function"]}]}
    assert guided.post("/v1/responses", json=responses).status_code == 200
    assert outcome(guided, SESSION, 1.0)["steps"] == 1, "the same state twice"


def test_a_name_that_the_caller_chose_comes_first(guided: TestClient) -> None:
    both = {"session_id": SESSION, "X-Session-ID": "mine"}
    assert step(guided, both, prompt_cache_key="other") == "mine"
    assert step(guided, {"session_id": SESSION}, prompt_cache_key="other") == SESSION


def test_requests_without_tools_are_no_steps_of_a_session(guided: TestClient) -> None:
    assert step(guided, {"session_id": SESSION}, tools=False) is None
    assert outcome(guided, SESSION, 1.0)["status"] == 404


def test_a_subagent_has_an_episode_of_its_own_and_odd_names_have_none(guided: TestClient) -> None:
    names = {"X-Claude-Code-Session-Id": SESSION, "X-Claude-Code-Agent-Id": "a1"}
    assert step(guided, names) == f"{SESSION}/a1"
    assert step(guided, {"session_id": "a" * 300}) is None


def test_each_outcome_begins_another_episode_and_nothing_is_refused(guided: TestClient) -> None:
    headers = {"session_id": SESSION}
    seen = []
    for reward in (1.0, 0.0, 1.0):
        seen.append(step(guided, headers))
        assert step(guided, headers, messages=LATER) == seen[-1]
        told = outcome(guided, SESSION, reward)
        assert (told["status"], told["steps"], told["reward"]) == (200, 2, reward)
        assert outcome(guided, SESSION, reward)["status"] == 200, "posted again"
        assert outcome(guided, SESSION, 0.5)["status"] == 409
    assert len(set(seen)) == 3
    chosen = {"X-Session-ID": "mine"}
    step(guided, chosen)
    assert outcome(guided, "mine", 1.0)["status"] == 200
    body = {"messages": [TASK]}
    assert guided.post("/v1/chat/completions", json=body, headers=chosen).status_code == 409


def test_a_long_session_is_never_full_but_is_not_recorded(
    serve: Serve, address: tuple[FakeUpstream, str], tmp_path: Path
) -> None:
    limits: dict[str, Any] = {"episodes_dir": tmp_path, "episode_max_steps": 1}
    client = serve(settings_of(address[1], **limits))
    for messages in ([TASK], LATER, [*LATER, *LATER[1:]]):
        step(client, {"session_id": SESSION}, messages=messages)
    told = outcome(client, SESSION, 1.0)
    assert (told["status"], told["recorded"], told["steps"]) == (200, False, 3)
    assert "QGUIDE_EPISODE_MAX_STEPS" in told["reason"]
    step(client, {"session_id": SESSION})
    assert outcome(client, SESSION, 0.0)["recorded"] is True


@pytest.mark.parametrize("title_first", [True, False])
def test_a_request_without_the_tools_of_the_steps_is_no_step_of_a_named_episode(
    serve: Serve, address: tuple[FakeUpstream, str], tmp_path: Path, title_first: bool
) -> None:
    client, mine = serve(settings_of(address[1], episodes_dir=tmp_path)), {"X-Session-ID": "mine"}
    title = [{"role": "user", "content": "Write a title for this chat."}]
    if title_first:
        step(client, mine, tools=False, messages=title)
    step(client, mine)
    if not title_first:
        step(client, mine, tools=False, messages=title)
    step(client, mine, messages=LATER)
    step(client, mine, tools=False, messages=[*LATER, *LATER[1:]])  # goes on without tools
    told = outcome(client, "mine", 1.0)
    assert (told["recorded"], told["steps"]) == (True, 3), told["reason"]
    (file,) = tmp_path.glob("trees-*.jsonl")
    (tree,) = map(json.loads, file.read_text().splitlines())
    assert (tree["first_observation"], len(tree["nodes"])) == (TASK["content"], 3)


@pytest.mark.parametrize("title_tools", [True, False])
def test_an_agent_whose_messages_change_is_recorded_and_a_title_does_not_get_into_it(
    serve: Serve, address: tuple[FakeUpstream, str], tmp_path: Path, title_tools: bool
) -> None:
    client, mine = serve(settings_of(address[1], episodes_dir=tmp_path)), {"X-Session-ID": "mine"}
    said: list[dict[str, Any]] = [TASK]
    for number in range(3):
        now = {"role": "system", "content": f"It is 9:0{number}."}
        reminded = said[-1] | {"content": f"{said[-1]['content']} <reminder>Call {number}.</reminder>"}
        asked = {"messages": [now, *said[:-1], reminded], "tools": [TOOL], "qguide": {"num_candidates": 2}}
        answer = client.post("/v1/chat/completions", json=asked, headers=mine).json()["choices"][0]["message"]
        seen: dict[str, Any] = {"role": "user", "content": "A mug."}
        if calls := answer.get("tool_calls"):  # the fake calls nothing after a result
            seen |= {"role": "tool", "tool_call_id": calls[0]["id"]}
        said += [answer, seen]
        step(client, mine, messages=[{"role": "system", "content": "Write a title."}, *said], tools=title_tools)
    told = outcome(client, "mine", 1.0)
    assert told["recorded"] is not title_tools
    if title_tools:  # it cannot be told from a step, until the next step is not its own
        assert "does not continue" in told["reason"]
        return
    (file,) = tmp_path.glob("trees-*.jsonl")
    (tree,) = map(json.loads, file.read_text().splitlines())
    assert tree["system"] == "It is 9:00."
    assert tree["first_observation"] == f"{TASK['content']} <reminder>Call 0.</reminder>"
    observed = [f"A mug. <reminder>Call {number}.</reminder>" for number in (1, 2)]
    assert [node["observation"] for node in tree["nodes"]] == [*observed, ""]


def test_a_history_that_was_rewritten_with_tools_is_not_recorded(
    serve: Serve, address: tuple[FakeUpstream, str], tmp_path: Path
) -> None:
    client, mine = serve(settings_of(address[1], episodes_dir=tmp_path)), {"X-Session-ID": "mine"}
    step(client, mine)
    step(client, mine, messages=[TASK | {"content": "It is Monday."}])
    assert not outcome(client, "mine", 1.0)["recorded"]


@pytest.mark.parametrize(
    ("told", "command", "reward"),
    [
        ({"session_id": SESSION, "hook_event_name": "Stop"}, "True", 1.0),
        ({"session_id": SESSION, "hook_event_name": "Stop"}, "False", 0.0),
        ({"type": "agent-turn-complete", "thread-id": SESSION}, "True", 1.0),
    ],
)
def test_the_hook_posts_whether_a_command_succeeds(
    address: tuple[FakeUpstream, str], tmp_path: Path, told: dict[str, str], command: str, reward: float
) -> None:
    program = f"import os; assert {command} and os.getcwd() == {str(tmp_path)!r}"
    test = [sys.executable, "-c", program]
    told = {**told, "cwd": str(tmp_path)}
    as_argument = [json.dumps(told)] if "type" in told else []
    app = create_app(settings_of(address[1], episodes_dir=tmp_path / "episodes"))
    with serving_app(app) as url:
        with httpx.Client(base_url=url) as client:
            step(client, {"session_id": SESSION})
        done = subprocess.run(
            [sys.executable, HOOK, url, "--", *test, *as_argument],
            input="" if as_argument else json.dumps(told),
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == ""
    assert json.loads(done.stderr.splitlines()[-1])["reward"] == reward
