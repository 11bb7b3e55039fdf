"""Play one episode in the terminal against a running server, and show the candidates at each step.

qguide play --generated 7
qguide play --games DIR --task 3 --url http://127.0.0.1:8000
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import httpx
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from qguide.qnet.errors import ConfigError, ScorerUnavailableError
from qguide.qnet.types import History, Message
from qguide.training.environment import EnvironmentConfig
from qguide.training.environments.registry import build_selected_suite

BAR_WIDTH = 20


@dataclass(frozen=True, slots=True)
class PlayConfig:
    """Options of `qguide play`."""

    environment: EnvironmentConfig
    url: str = "http://127.0.0.1:8000"
    task: int = 0
    num_candidates: int = 5
    temperature: float = 0.7
    seed: int = 0
    max_steps: int = 40


def run_play(config: PlayConfig, *, console: Console, client: httpx.Client | None = None) -> float:
    """Play to the end and return the outcome reward."""
    http = client or httpx.Client(base_url=config.url, timeout=120)
    with closing(build_selected_suite(config.environment)) as suite, http:
        if not 0 <= config.task < len(suite.tasks):
            raise ConfigError(
                f"task is {config.task}, but the environment has tasks 0 to {len(suite.tasks) - 1}; name one of them"
            )
        if suite.environment.chat.tools:
            raise ConfigError(
                f"the actions of {suite.environment.name} are tool calls, which `play` does not "
                "make; play an environment whose actions are text"
            )
        task = suite.tasks[config.task]
        with closing(suite.make(task)) as environment:
            observation = environment.reset()
            console.print(Panel(Text(observation), title=task.id))
            chat, reward = suite.environment.chat, 0.0
            history: History = chat.history(observation, ())
            for step in range(1, config.max_steps + 1):
                decision = _ask(http, config, history, step)
                reply = str(decision["action"])
                console.print(_candidates_table(decision, step))
                result = environment.step(chat.parse_action(reply))
                console.print(Panel(Text(result.observation)))
                history += (Message("assistant", reply), Message("user", result.observation))
                reward = result.reward
                if result.ended:
                    console.print(f"[bold]reward {reward:g} after {step} steps[/bold]")
                    return reward
    console.print(f"[bold]not done after {config.max_steps} steps, reward {reward:g}[/bold]")
    return reward


def _ask(http: httpx.Client, config: PlayConfig, history: History, step: int) -> dict[str, Any]:
    body = {
        "messages": [{"role": m.role, "content": m.content} for m in history],
        "num_candidates": config.num_candidates,
        "temperature": config.temperature,
        "seed": config.seed + step,
    }
    try:
        response = http.post("/v1/act", json=body)
    except httpx.HTTPError as error:
        raise ScorerUnavailableError(
            f"no server answers at {config.url} ({error}); start one with `make serve`"
        ) from error
    if response.is_error:
        raise ScorerUnavailableError(f"the server refused the request: {_refusal(response)}")
    try:
        answer: dict[str, Any] = response.json()
    except ValueError as error:
        raise ScorerUnavailableError(
            f"the answer from {config.url} is not a QGuide server's; name the server with --url"
        ) from error
    return answer


def _refusal(response: httpx.Response) -> str:
    """The message of an error response, which may come from a proxy instead of QGuide."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code} {response.reason_phrase}"


def _candidates_table(decision: dict[str, Any], step: int) -> Table:
    candidates = decision["candidates"]
    # Candidates that are all the same are not scored.
    q_values = [candidate["q_value"] for candidate in candidates]
    table = Table(title=f"step {step}", show_header=False, title_justify="left")
    for index, (candidate, q) in enumerate(zip(candidates, q_values, strict=True)):
        chosen = index == decision["chosen"]
        table.add_row(
            "▶" if chosen else "",
            "–" if q is None else f"{q:.3f}",
            "" if q is None else _bar(q, q_values),
            Text(candidate["message"]["content"]),
            style="bold green" if chosen else None,
        )
    return table


def _bar(q: float, q_values: Sequence[float]) -> str:
    """A bar whose length grows with Q; even the lowest Q gets one block."""
    low, high = min(0.0, *q_values), max(1.0, *q_values)
    return "█" * max(1, round(BAR_WIDTH * (q - low) / (high - low)))
