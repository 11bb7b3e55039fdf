"""The documentation's recipes work: each block is run as it stands, on one server for all pages.

A block that is not run says why in a comment before it; tests/unit/docs checks its commands against
the code. The server is a process of `qguide serve` with the variables that the pages give, and what
it draws from is a process of `qguide fake-upstream` in OpenAI's place; the ports are other ones.
"""

import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from qguide.qnet.models.loading import embedded_path
from qguide.server.chat.fake_openai import DEFAULT_REPLIES
from qguide.training.environments.branches import choose_branching
from qguide.training.environments.contract import Subject, check_environment
from qguide.training.environments.registry import build_selected_suite, environment_config
from tests.support.alone import run_forked
from tests.support.documents import blocks_of, pages, run_shell
from tests.support.serving import START_S, ForkedProcess, free_port, run_qguide, serving, serving_process

THERE = "http://127.0.0.1:8000"
OPENAI_SDK = "docs/connect/openai-sdk.md"
FIRST_OBSERVATION = "You see a desk 1. Your task is to: find the mug."
RUN = [page for page in pages() if any(block.is_run for block in blocks_of(page))]
OF_OPENAIS_SDK = pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")

# openai's own types of a compaction know no message of a user, which the API and QGuide keep in it.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")


@dataclass
class Environment:
    """The `environment` of the pages, which ends after three actions."""

    reward: float = 0.5
    actions: list[str] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return len(self.actions) == 3

    def reset(self) -> str:
        return FIRST_OBSERVATION

    def step(self, action: str) -> str:
        self.actions.append(action)
        return "Nothing happens."


@dataclass
class Played:
    """Result of a page: the JSON that its shell blocks printed, and its names in Python."""

    answers: list[Any] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=lambda: {"environment": Environment()})


Play = Callable[[str], Played]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the variables of the pages, except for the address of its upstream."""
    (given,) = (b.text for b in blocks_of(OPENAI_SDK) if "export QGUIDE_UPSTREAMS=" in b.text)
    variables = dict(re.findall(r"(QGUIDE_\w+)=('.*'|\w+)", given))
    upstreams = json.loads(shlex.split(variables["QGUIDE_UPSTREAMS"])[0])
    (upstream,) = upstreams.values()
    assert upstream["url"] == "https://api.openai.com/v1"
    folder = tmp_path_factory.mktemp("documentation")
    for name in ("shop-0042", "shop-0043"):
        shutil.copytree(embedded_path("qnet"), folder / "models" / name)
    with fake_upstream(folder) as upstream["url"]:
        named = json.loads(shlex.split(variables["QGUIDE_Q_MODELS"])[0])
        environment = variables | {
            "QGUIDE_UPSTREAMS": json.dumps(upstreams),
            # Pages about the server that `make serve` starts ask its Q model.
            "QGUIDE_Q_MODELS": json.dumps({"embedded": "embedded", **named}),
            # The default here reads ALFWorld alone; on pages with other tasks it is a judge.
            "QGUIDE_OUT_OF_DOMAIN": "guide",
            "QGUIDE_PARAPHRASER": "scripted",
            "QGUIDE_ADMIN": "true",
            "QGUIDE_MODELS_DIR": str(folder / "models"),
            "QGUIDE_EPISODES_DIR": str(folder / "served"),
        }
        with serving(env=environment, log=folder / "serve.log", start_s=START_S) as started:
            yield started


@contextmanager
def fake_upstream(folder: Path) -> Iterator[str]:
    """The base URL of a `qguide fake-upstream`."""
    port = free_port()
    root, log = f"http://127.0.0.1:{port}", folder / "upstream.log"
    process = ForkedProcess(["fake-upstream", "--port", str(port)], os.environ, log)
    try:
        deadline = time.monotonic() + START_S
        while not _is_well(root):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "the fake upstream did not start"
            time.sleep(0.2)
        yield f"{root}/v1"
    finally:
        process.kill()


def _is_well(root: str) -> bool:
    try:
        return httpx.get(f"{root}/health").is_success
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def play(url: str, tmp_path_factory: pytest.TempPathFactory) -> Play:
    """Runs the blocks of a page once, in order."""

    @cache
    def play_page(page: str) -> Played:
        played = Played()
        for block in blocks_of(page):
            if not block.is_run:
                continue
            text = block.text.replace(THERE, url)
            if block.language == "python":
                exec(compile(text, page, "exec"), played.names)
                continue
            assert THERE in block.text, f"what does this ask? {block.text}"
            if shutil.which("curl") is None:
                pytest.skip("no curl on PATH")
            played.answers += _json_in(run_shell(text, tmp_path_factory.mktemp("block")))
        return played

    return play_page


def _json_in(text: str) -> Iterator[Any]:
    """The JSON values in a sequence of them."""
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        yield value
        text = text[end:]


@OF_OPENAIS_SDK
@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_a_page_run(page: str, play: Play) -> None:
    for answer in play(page).answers:
        assert answer.get("error") is None, answer  # a response of the Responses API has the field


def test_the_readmes_curl_chooses_the_candidate_with_the_highest_posterior(play: Play) -> None:
    (answer,) = play("README.md").answers
    posterior = [candidate["posterior"] for candidate in answer["candidates"]]
    assert len({candidate["q_value"] for candidate in answer["candidates"]}) > 1
    assert len(posterior) == 5
    assert posterior[answer["chosen"]] == max(posterior) > min(posterior)
    assert answer["action"] in DEFAULT_REPLIES


def test_score_ranks_the_readers_own_candidates(play: Play) -> None:
    names = play("docs/start.md").names
    q_values = [score["q_value"] for score in names["answer"]["scores"]]
    assert len(q_values) == 2
    assert q_values[names["best"]] == max(q_values)


def test_chat_completions_answer_with_the_best_tool_call(play: Play) -> None:
    (answer,) = play(OPENAI_SDK).answers
    guidance = answer["qguide"]
    assert len(guidance["candidates"]) == 5
    assert guidance["posterior"][guidance["chosen"]] == max(guidance["posterior"])
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "look"


def test_openais_sdk_needs_another_base_url_alone(play: Play) -> None:
    names = play(OPENAI_SDK).names
    assert names["completion"].choices[0].message.content in DEFAULT_REPLIES
    assert len(names["guidance"]["q_values"]) == 5


@OF_OPENAIS_SDK
def test_the_responses_api_answers_with_items(play: Play) -> None:
    played = play("docs/connect/responses.md")
    assert played.names["response"].output_text in DEFAULT_REPLIES
    assert played.names["streamed"].output_text in DEFAULT_REPLIES
    assert played.names["event"].response.output_text in DEFAULT_REPLIES
    assert len(played.names["guidance"]["q_values"]) == 5
    (answer,) = played.answers
    (call,) = answer["output"]
    assert (call["type"], call["name"]) == ("function_call", "look")


def test_langchain_gets_the_best_reply(play: Play) -> None:
    assert play("docs/connect/langchain.md").names["reply"].content in DEFAULT_REPLIES


def test_rerank_sorts_the_documents(play: Play) -> None:
    reranked, classified = play("docs/connect/rerankers.md").answers
    results = reranked["results"]
    assert sorted(one["index"] for one in results) == [0, 1]
    assert 1 > results[0]["relevance_score"] >= results[1]["relevance_score"] > 0
    assert classified["data"]


def test_a_trainer_is_paid_q_and_a_router_told_it(play: Play) -> None:
    played = play("docs/connect/gateways.md")
    asked = {"messages": [{"role": "user", "content": FIRST_OBSERVATION}]}
    said = "Action: go to desk 1"
    action = {"role": "assistant", "content": said}
    with played.names["client"]:  # the page leaves it open
        q_value = played.names["compute_score"]("house", said, "", asked)
        assert isinstance(q_value, float)
        assert q_value == played.names["q_of"]([*asked["messages"], action])
    (verdict,) = played.answers
    assert verdict["confidence"] == min(max(verdict["q_value"], 0), 1)
    assert verdict["should_escalate"] == (verdict["confidence"] < 0.6)


def test_adaptive_draws_all_at_the_first_step_and_perturbed_ones_are_counted(play: Play) -> None:
    posterior, adaptive, decided, in_time, perturbed = play("docs/connect/options.md").answers
    assert len(posterior["candidates"]) == 5
    assert (len(adaptive["candidates"]), adaptive["draws_saved"]) == (6, 0)
    assert len(decided["candidates"]) + decided["draws_saved"] == 7
    assert len(in_time["candidates"]) + in_time["draws_saved"] == 5
    assert perturbed["perturbed"] == 2


def test_an_episode_ends_with_its_outcome_and_is_recorded(url: str, play: Play) -> None:
    _, closed, by_url, by_header, both, attempts, last, told = play("docs/connect/episodes.md").answers
    assert by_url["qguide"]["episode_id"] == by_header["qguide"]["episode_id"] == "apple-8"
    assert (both["episode_id"], both["reward"]) == ("apple-8", 1.0)
    assert (closed["episode_id"], closed["reward"], closed["steps"]) == ("apple-7", 1.0, 1)
    assert closed["recorded"], closed
    assert len(attempts["go_on"]) == 1
    assert last["qguide"]["episode_id"] == "apple-9"
    assert told["action"]
    ended = httpx.post(f"{url}/v1/episodes/apple-9/outcome", json={"reward": 0.5})
    assert (ended.status_code, ended.json()["error"]["code"]) == (409, "episode_closed")
    path = f"{url}/v1/episodes/apple-7/outcome"
    again = {"reward": 1.0, "observation": "You put the apple in the fridge."}
    assert httpx.post(path, json=again).json() == closed, "the same outcome again changes nothing"


def test_the_environment_of_the_page_keeps_to_the_contract(play: Play) -> None:
    names = play("docs/bring/environment.md").names
    bundle, config = names["LAMPS"], names["LampsConfig"](count=2)
    suite = bundle.build_suite(config)
    first, second = (suite.make(task) for task in suite.tasks)
    assert first.reset() != second.reset()
    assert not first.step("juggle the moon").valid
    wrong, right = first.step("press switch 2"), first.step("press switch 1")
    assert not bundle.is_success(wrong.reward, wrong.terminated)
    assert bundle.is_success(right.reward, right.terminated)


def test_environments_of_other_interfaces_keep_to_the_contract(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    names = play("docs/bring/other-interfaces.md").names
    module = ModuleType("my_package")
    module.__dict__.update(names)
    monkeypatch.setitem(sys.modules, "my_package", module)
    for name, harmless in (("Lamp", "look"), ("Shop", "look({})")):
        table = {"name": f"my_package:{name}", "harmless": harmless, "count": 2}
        config = environment_config(table | ({"reward_range": [0, 3]} if name == "Lamp" else {}))
        suite = build_selected_suite(config)
        found = check_environment(Subject(config, suite, suite.environment.harmless))
        assert [one.detail for one in found if one.outcome == "failed"] == []
        assert choose_branching(suite).branching == "replay"


def test_q_models_come_and_go_and_one_is_promoted(play: Play) -> None:
    first, *answers, last = play("docs/operate/q-models.md").answers
    assert "shop@v2" in [card["id"] for card in first["q_models"]]
    moves = [answer["aliases"]["default"] for answer in answers]
    assert "shop@v3" in moves
    assert last["aliases"]["default"] == "shop@v3"
    assert "shop@v2" not in [card["id"] for card in last["q_models"]]


@pytest.mark.parametrize(
    "page", ["README.md", "docs/connect/python-client.md", "clients/python/README.md", "skills/qguide/SKILL.md"]
)
def test_the_python_client_plays_an_episode_to_its_end(page: str, url: str, play: Play) -> None:
    names = play(page).names
    assert all(action in DEFAULT_REPLIES for action in names["environment"].actions)
    path = f"{url}/v1/episodes/{names['episode'].episode_id}/outcome"
    assert httpx.post(path, json={"reward": 0.5}).json()["steps"] == 3
    assert httpx.post(path, json={"reward": 0.0}).status_code == 409


def test_an_admin_key_promotes_a_q_model_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl on PATH")
    for name in ("shop-0042", "shop-0043"):
        shutil.copytree(embedded_path("qnet"), tmp_path / "models" / name)
    keys = tmp_path / "keys.json"
    create = ["keys", "create", "root", "--admin", "--file", str(keys)]
    code, said = run_forked(run_qguide, create, cwd=tmp_path)
    assert code == 0, said
    settings = {"QGUIDE_KEYS_FILE": str(keys), "QGUIDE_ADMIN": "true", "QGUIDE_MODELS_DIR": str(tmp_path / "models")}
    (key,) = re.findall(r"\bqg[\w-]{20,}", said)
    monkeypatch.setenv("QGUIDE_KEY", key)
    blocks = [block.text for block in blocks_of("docs/operate/q-models.md") if block.is_run]
    with serving_process(tmp_path, environment=settings) as served:
        for block in blocks:
            for answer in _json_in(run_shell(block.replace(THERE, served.url), tmp_path)):
                assert "error" not in answer, answer
