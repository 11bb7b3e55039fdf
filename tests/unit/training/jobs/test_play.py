"""The play command shows the candidates, and explains a server that does not answer."""

import io
import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from rich.console import Console

from qguide.qnet.errors import ScorerUnavailableError
from qguide.training.environments.corridor import Corridor, CorridorConfig
from qguide.training.jobs.play import PlayConfig, run_play

CORRIDOR = CorridorConfig(first_seed=3, count=1)
Answer = Callable[[httpx.Request], httpx.Response]


def play(answer: Answer, **options: Any) -> tuple[float, str]:
    """The reward and what was shown."""
    shown = io.StringIO()
    config = PlayConfig(CORRIDOR, **options)
    client = httpx.Client(base_url=config.url, transport=httpx.MockTransport(answer))
    reward = run_play(config, console=Console(file=shown, width=100), client=client)
    return reward, shown.getvalue()


def decision(*replies: str, q_values: tuple[float, ...], chosen: int) -> httpx.Response:
    candidates = [
        {"message": {"role": "assistant", "content": reply}, "q_value": q}
        for reply, q in zip(replies, q_values, strict=True)
    ]
    body = {"action": replies[chosen], "chosen": chosen, "candidates": candidates}
    return httpx.Response(200, json=body)


def test_the_choice_is_what_is_played() -> None:
    solution = Corridor.of_seed(3).solution()
    asked: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        right = f"Action: {solution[len(asked) - 1]}"
        return decision("Action: look", right, q_values=(0.25, 0.875), chosen=1)

    reward, shown = play(answer, num_candidates=2, seed=10)
    assert reward == 1.0
    assert f"reward 1 after {len(solution)} steps" in shown
    assert [body["seed"] for body in asked] == list(range(11, 11 + len(solution)))
    assert [len(body["messages"]) for body in asked] == [1 + 2 * k for k in range(len(solution))]
    assert asked[1]["messages"][1] == {"role": "assistant", "content": f"Action: {solution[0]}"}


def test_a_bar_is_longer_for_a_higher_q() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return decision("Action: look", "Action: wait", q_values=(0.5, -0.5), chosen=0)

    _, shown = play(answer, max_steps=1)
    chosen, other = (line for line in shown.splitlines() if "Action:" in line)
    assert "▶" in chosen
    assert "0.500" in chosen
    assert "▶" not in other
    assert "-0.500" in other
    assert chosen.count("█") > other.count("█") >= 1
    assert "not done after 1 steps" in shown


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (httpx.Response(404, json={"error": {"message": "there is no Q model 'x'"}}), "'x'"),
        (httpx.Response(502, text="<html>Bad Gateway</html>"), "HTTP 502 Bad Gateway"),
        (httpx.Response(500, json={"detail": "no"}), "HTTP 500 Internal Server Error"),
        (httpx.Response(200, text="<html>Welcome</html>"), "--url"),
    ],
)
def test_an_answer_that_is_no_decision_is_explained(response: httpx.Response, said: str) -> None:
    with pytest.raises(ScorerUnavailableError, match=re.escape(said)):
        play(lambda _: response)


def test_a_server_that_is_silent_is_explained() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("timed out", request=request)

    with pytest.raises(ScorerUnavailableError, match=r"127\.0\.0\.1:8000 \(timed .*`make serve`"):
        play(answer)
