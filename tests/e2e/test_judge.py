"""`qguide serve --scorer judge:…` guides an agent on an environment that no Q model here knows."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from qguide.server.chat.fake_openai import FakeUpstream
from tests.support.serving import serving, serving_app

START_S = 180.0
MAX_STEPS = 3
TASK = "You are in a study. Open cabinet 3 and take the book."
REPLIES = [
    f"Thought: Well.\nAction: {action}"
    for action in ("open drawer 1", "take lamp", "open cabinet 3", "look", "take book now")
]


@dataclass
class Study:
    """A room with a book in a closed cabinet; the reward is 1 once the agent has the book."""

    opened: set[str] = field(default_factory=set)

    def step(self, reply: str) -> tuple[str, float]:
        action = reply.rpartition("Action: ")[2]
        if action == "take book now" and "cabinet 3" in self.opened:
            return "You have the book.", 1.0
        if action.startswith("open "):
            self.opened.add(action.removeprefix("open "))
            return f"{action.removeprefix('open ')} is open.", 0.0
        return "Nothing happens.", 0.0


@pytest.fixture(scope="module")
def guided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The root URL of a server whose policy and judge are the fake upstream."""
    log = tmp_path_factory.mktemp("judge") / "stderr.log"
    with serving_app(FakeUpstream(replies=REPLIES).app()) as upstream:
        options = ("--upstream", f"{upstream}/v1#fake-1", "--scorer", "judge:fake-1")
        with serving(*options, env={}, log=log, start_s=START_S) as url:
            yield url


def play(url: str, *, num_candidates: int) -> tuple[float, list[dict[str, Any]]]:
    """Reward of one episode of a plain OpenAI agent, and its answers."""
    study, answers = Study(), []
    messages = [{"role": "user", "content": TASK}]
    for _ in range(MAX_STEPS):
        body = {"messages": messages, "qguide": {"num_candidates": num_candidates}}
        response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        answers.append(response.raise_for_status().json())
        reply = answers[-1]["choices"][0]["message"]["content"]
        observation, reward = study.step(reply)
        if reward:
            return reward, answers
        messages.append({"role": "assistant", "content": reply})
        messages.append({"role": "user", "content": observation})
    return 0.0, answers


def test_the_judged_agent_wins_where_the_policy_alone_does_not(guided: str) -> None:
    alone, _ = play(guided, num_candidates=1)
    reward, answers = play(guided, num_candidates=len(REPLIES))
    assert (alone, reward) == (0.0, 1.0)
    assert len(answers) == 2
    guidance = answers[0]["qguide"]
    assert (guidance["guided"], guidance["judge"]) == (True, True)
    assert guidance["usage"]["score"]["judge"]["calls"] == len(REPLIES)


def test_the_judge_is_listed_as_one(guided: str) -> None:
    listed = httpx.get(f"{guided}/v1/models").json()
    [policy], [judge] = listed["data"], listed["q_models"]
    assert (policy["kind"], policy["id"], policy["default"]) == ("policy", "fake-1", True)
    assert judge["source"] == "judge"
    assert judge["id"].startswith("judge@judge-")
