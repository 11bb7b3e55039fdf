"""Coding agents of others, unmodified, in a guided turn; see tests/support/foreign_clients.py."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from qguide.server.chat.fake_openai import FakeUpstream
from tests.support.foreign_clients import (
    AIDER,
    BEST,
    MINI,
    NODE,
    client,
    lines_of,
    needs_aider,
    needs_mini,
    needs_node,
    output_of,
    serving,
)

NOTE = "the mug is on the desk"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    workplace = tmp_path / "workplace"
    workplace.mkdir()
    (workplace / "note.txt").write_text(NOTE)
    return workplace


def check_asked(fake: FakeUpstream) -> None:
    """Check that each answer was chosen among five, and that the policy got the tool's result."""
    assert {asked.get("n") for asked in fake.asked} == {5}
    results = [turn for turn in fake.asked[-1]["messages"] if turn["role"] == "tool"]
    assert NOTE in str(results[-1]["content"])


def steps_of(url: str, episode: str) -> int:
    """End an episode; its number of steps."""
    outcome = httpx.post(f"{url}/v1/episodes/{episode}/outcome", json={"reward": 1.0}).json()
    return int(outcome["steps"])


def program(name: str) -> str:
    return str(Path(NODE) / "node_modules" / name)


@needs_node
@client("Gemini CLI", "@google/gemini-cli", "Gemini", "two turns that read a file, as an episode")
def test_gemini_cli_reads_a_file_in_two_turns_of_a_session(home: Path, workplace: Path) -> None:
    (home / ".gemini").mkdir()
    login = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    (home / ".gemini" / "settings.json").write_text(json.dumps(login))
    fake = FakeUpstream(calls=[("read_file", {"file_path": "note.txt"})], fault="refuse_top_k")
    asked = ["-m", "demo", "-p", "find the mug", "--output-format", "json"]
    with serving(fake) as url:
        env = {
            "HOME": str(home),
            "GEMINI_API_KEY": "unused",
            "GOOGLE_GEMINI_BASE_URL": f"{url}/episodes/gemini-1",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }
        for more in ([], ["--resume", "latest"]):
            said = output_of(program(".bin/gemini"), *asked, *more, cwd=str(workplace), env=env)
            assert json.loads(said)["response"] == BEST
        assert steps_of(url, "gemini-1") == 4
    check_asked(fake)


@needs_node
@client("Qwen Code", "@qwen-code/qwen-code", "Chat", "a turn that reads a file, as an episode")
def test_qwen_code_reads_a_file_in_a_turn(home: Path, workplace: Path) -> None:
    note = str(workplace / "note.txt")
    fake = FakeUpstream(calls=[("read_file", {"file_path": note})])
    asked = ["--auth-type", "openai", "-p", "find the mug", "--output-format", "json"]
    with serving(fake) as url:
        env = {
            "HOME": str(home),
            "OPENAI_API_KEY": "unused",
            "OPENAI_BASE_URL": f"{url}/episodes/qwen-1/v1",
            "OPENAI_MODEL": "demo",
        }
        [events] = lines_of(program(".bin/qwen"), *asked, cwd=str(workplace), env=env)
        assert steps_of(url, "qwen-1") == 2
    assert events[-1]["result"] == BEST
    check_asked(fake)


@needs_node
@client("opencode", "opencode-ai", "Chat", "a turn that reads a file, as an episode")
def test_opencode_reads_a_file_in_a_turn(home: Path, workplace: Path) -> None:
    note = str(workplace / "note.txt")
    fake = FakeUpstream(calls=[("read", {"filePath": note})])
    [own] = Path(NODE).glob("node_modules/opencode-linux-x64/bin/opencode")
    with serving(fake) as url:
        provider: dict[str, Any] = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{url}/episodes/opencode-1/v1", "apiKey": "unused"},
            "models": {"demo": {}},
        }
        config = {"model": "qguide/demo", "provider": {"qguide": provider}}
        (workplace / "opencode.json").write_text(json.dumps(config))
        asked = ["run", "--format", "json", "find the mug"]
        env = {"HOME": str(home), "PWD": str(workplace)}
        events = lines_of(str(own), *asked, cwd=str(workplace), env=env)
        assert steps_of(url, "opencode-1") >= 2
    texts = [event["part"]["text"] for event in events if event["type"] == "text"]
    assert texts[-1] == BEST
    check_asked(fake)


@needs_aider
@client("aider", "aider-chat", "Chat", "a turn that edits a file")
def test_aider_edits_a_file_in_a_turn(home: Path, workplace: Path) -> None:
    edit = f"note.txt\n```\n<<<<<<< SEARCH\n{NOTE}\n=======\nno mug\n>>>>>>> REPLACE\n```"
    fake = FakeUpstream(replies=[edit])
    asked = ["--model", "openai/demo", "--edit-format", "diff", "--yes-always", "--no-git"]
    asked += ["--no-check-update", "--no-show-model-warnings", "--no-detect-urls"]
    with serving(fake) as url:
        env = {"HOME": str(home), "OPENAI_API_KEY": "unused", "OPENAI_API_BASE": f"{url}/v1", "PYTHONPATH": ""}
        output_of(*(AIDER, *asked, "--message", "take the mug", "note.txt"), cwd=str(workplace), env=env)
    assert (workplace / "note.txt").read_text().strip() == "no mug"
    drawn = [asked.get("n", 1) for asked in fake.asked]  # at its temperature of 0, one and the rest
    assert sorted(drawn) == [1, 4]


@needs_mini
@client("mini-swe-agent", "mini-swe-agent", "Chat", "a turn that runs a command and submits")
def test_mini_swe_agent_runs_a_command_and_submits(home: Path, workplace: Path) -> None:
    command = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat note.txt"
    fake = FakeUpstream(calls=[("bash", {"command": command})])
    trajectory = workplace / "trajectory.json"
    asked = ["-m", "openai/demo", "-t", "find the mug", "--yolo", "--exit-immediately"]
    with serving(fake) as url:
        env = {
            "HOME": str(home),
            "OPENAI_API_KEY": "unused",
            "OPENAI_API_BASE": f"{url}/v1",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "PYTHONPATH": "",
        }
        output_of(*(MINI, *asked, "-o", str(trajectory)), cwd=str(workplace), env=env)
    told = json.loads(trajectory.read_text())["info"]
    assert (told["exit_status"], told["submission"].strip()) == ("Submitted", NOTE)
    assert [turn["n"] for turn in fake.asked] == [5]
