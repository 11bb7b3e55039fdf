"""The README's recipes are true: each block is run as it stands, or the reason why not is here.

The server is a process of `qguide serve`, set up as the README says, and what it draws from is a
process of `qguide fake-upstream` in OpenAI's place; the ports are other ones.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from server.chat.fake_openai import DEFAULT_REPLIES
from tests.support.serving import ROOT, START_S, free_port, serving

BLOCK = re.compile(r"^```(?:sh|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = BLOCK.findall((ROOT / "README.md").read_text())
THERE = "http://127.0.0.1:8000"

ACT = '"num_candidates": 5,\n  "temperature": 1.5'
SCORE = 'best = answer["chosen"]'
CHAT = "export QGUIDE_UPSTREAMS="
OPENAI_SDK = "client = openai.OpenAI("
RERANK = "/v2/rerank"
ADAPTIVE = '"adaptive": true'
OUTCOME = "/v1/episodes/apple-7/outcome"
CLIENT = "from qguide_client import QGuide"
RUN = (ACT, SCORE, CHAT, OPENAI_SDK, RERANK, ADAPTIVE, OUTCOME, CLIENT)

NOT_RUN = {
    "make test ": "makes an environment of its own and runs this suite",
    "qguide label --config training/configs/alfworld/label.toml": "trains; test_feedback_loop does",
    "$admin/load": "needs checkpoints of the reader's; unit/server/test_admin does",
    "--output runs/embedded/valid_seen": "plays 140 games for hours, which are not part of this",
    "--output runs/embedded/validation": "trains for hours",
    "qguide sft --config $real/sft.toml": "trains for an hour",
    "qguide choice-regret": "plays 100 games; unit/training/jobs/test_choice_regret does",
    "qguide sft --config $low/sft.toml": "trains for hours",
    "make vllm-cpu ": "needs vLLM; unit/qnet/bench does it with the scripted one",
    "qguide bench serve": "takes minutes; unit/qnet/bench/test_serve_bench does",
    "qguide keys create ada": "opens a port to others; unit/server/test_keys does",
    "docker compose": "needs an engine; unit/deployment checks the file",
    "helm install": "needs a cluster; unit/deployment renders the chart",
    "vllm serve trunk": "needs vLLM; test_vllm does",
}

HISTORY = [{"role": "user", "content": "You see a desk 1. Your task is to: find the mug."}]


def block_with(marker: str) -> str:
    """The one block that has it."""
    (found,) = (block for block in BLOCKS if marker in block)
    return str(found)


def test_every_block_is_run_here_or_has_a_reason_not_to_be() -> None:
    markers = (*RUN, *NOT_RUN)
    for block in BLOCKS:
        assert len([marker for marker in markers if marker in block]) == 1, block
    for marker in markers:
        assert block_with(marker)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the README's variables, but for where its upstream is."""
    given = dict(re.findall(r"(QGUIDE_\w+)=('.*'|\w+)", block_with(CHAT)))
    upstreams = json.loads(shlex.split(given["QGUIDE_UPSTREAMS"])[0])
    (upstream,) = upstreams.values()
    assert upstream["url"] == "https://api.openai.com/v1"
    folder = tmp_path_factory.mktemp("readme")
    with fake_upstream(folder) as upstream["url"]:
        environment = given | {"QGUIDE_UPSTREAMS": json.dumps(upstreams)}
        with serving(env=environment, log=folder / "serve.log", start_s=START_S) as started:
            yield started


@contextmanager
def fake_upstream(folder: Path) -> Iterator[str]:
    """The base URL of a `qguide fake-upstream`."""
    port = free_port()
    command = [sys.executable, "-m", "qguide", "fake-upstream", "--port", str(port)]
    root = f"http://127.0.0.1:{port}"
    with (
        (folder / "upstream.log").open("wb") as log,
        subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log) as process,
    ):
        try:
            deadline = time.monotonic() + START_S
            while not _is_well(root):
                assert process.poll() is None, (folder / "upstream.log").read_text()
                assert time.monotonic() < deadline, "the fake upstream did not start"
                time.sleep(0.2)
            yield f"{root}/v1"
        finally:
            process.terminate()


def _is_well(root: str) -> bool:
    try:
        return httpx.get(f"{root}/health").is_success
    except httpx.TransportError:
        return False


def curl(marker: str, url: str) -> Any:
    """What the block's curl prints, from the first curl on."""
    if shutil.which("curl") is None:
        pytest.skip("no curl on PATH")
    block = block_with(marker)
    script = block[block.index("curl ") :]
    assert THERE in script
    done = subprocess.run(
        ["sh", "-ec", script.replace(THERE, url)], capture_output=True, text=True, check=True
    )
    answer = json.loads(done.stdout)
    assert "error" not in answer, answer
    return answer


def execute(marker: str, url: str, **names: Any) -> dict[str, Any]:
    """The names after the block was run."""
    block = block_with(marker)
    assert THERE in block
    exec(compile(block.replace(THERE, url), "README.md", "exec"), names)
    return names


def test_act_chooses_the_candidate_with_the_highest_q(url: str) -> None:
    answer = curl(ACT, url)
    q_values = [candidate["q_value"] for candidate in answer["candidates"]]
    assert len(q_values) == 5
    assert q_values[answer["chosen"]] == max(q_values) > min(q_values)
    assert answer["action"] in DEFAULT_REPLIES


def test_score_ranks_the_readers_own_candidates(url: str) -> None:
    names = execute(SCORE, url, history=HISTORY)
    q_values = [score["q_value"] for score in names["answer"]["scores"]]
    assert len(q_values) == 2
    assert q_values[names["best"]] == max(q_values)


def test_chat_completions_answer_with_the_best_tool_call(url: str) -> None:
    answer = curl(CHAT, url)
    guidance = answer["qguide"]
    assert len(guidance["candidates"]) == 5
    assert guidance["q_values"][guidance["chosen"]] == max(guidance["q_values"])
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "look"


def test_openais_sdk_needs_another_base_url_alone(url: str) -> None:
    names = execute(OPENAI_SDK, url, openai=openai, history=HISTORY, tools=openai.NOT_GIVEN)
    names["client"].close()
    completion = names["completion"]
    assert completion.choices[0].message.content in DEFAULT_REPLIES
    assert len(completion.model_extra["qguide"]["q_values"]) == 5


def test_rerank_sorts_the_documents(url: str) -> None:
    results = curl(RERANK, url)["results"]
    assert sorted(one["index"] for one in results) == [0, 1]
    assert 1 > results[0]["relevance_score"] >= results[1]["relevance_score"] > 0


def test_adaptive_steps_and_their_outcome_are_one_episode(url: str) -> None:
    first = curl(ADAPTIVE, url)
    assert (len(first["candidates"]), first["draws_saved"]) == (6, 0)
    closed = curl(OUTCOME, url)
    assert (closed["episode_id"], closed["reward"], closed["steps"]) == ("apple-7", 1.0, 1)
    assert curl(OUTCOME, url) == closed, "the same outcome again changes nothing"


@dataclass
class Environment:
    """What the README calls `environment`: it ends after three actions."""

    reward: float = 0.5
    actions: list[str] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return len(self.actions) == 3

    def reset(self) -> str:
        return HISTORY[0]["content"]

    def step(self, action: str) -> str:
        self.actions.append(action)
        return "Nothing happens."


@pytest.mark.parametrize("text", ["README.md", "clients/python/README.md"])
def test_the_python_client_plays_an_episode_to_its_end(url: str, text: str) -> None:
    environment = Environment()
    (block,) = (b for b in BLOCK.findall((ROOT / text).read_text()) if CLIENT in b)
    names: dict[str, Any] = {"environment": environment}
    exec(compile(block.replace(THERE, url), text, "exec"), names)
    assert all(action in DEFAULT_REPLIES for action in environment.actions)
    path = f"{url}/v1/episodes/{names['episode'].episode_id}/outcome"
    assert httpx.post(path, json={"reward": 0.5}).json()["steps"] == 3
    assert httpx.post(path, json={"reward": 0.0}).status_code == 409
