"""Agents of OpenAI's and Anthropic's SDKs: loops of replies and results that know of no guidance.

What an agent knows of QGuide is the address, and the header that names its episode; if asked to, it
tells in another one what it has earned so far.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Any, Final, Literal, Protocol

from qguide.qnet.types import ToolCall
from qguide.training.environment import Environment, StepResult, take
from qguide.training.trajectory import ChatFormat

AgentName = Literal["openai", "anthropic"]
Rewriting = Literal["nothing", "clock", "task", "reminder", "cut"]
"""Changes of an agent to its messages from request to request: nothing; the time of day in its system prompt, or in
the task; a reminder in its newest message, which it takes out again; tool results but the newest three, which it
cuts."""
_NEWEST_RESULTS: Final = 3
NOT_BEGUN = StepResult("", 0.0, terminated=False)


@dataclass(frozen=True, slots=True)
class Game:
    """One episode to play.

    Attributes:
        max_steps: replies after which the agent gives up.
        tells_earned: the agent tells with each request what the episode would be worth by then.
        rewrites: what the agent changes in its messages; of OpenAI's SDK alone.
    """

    environment: Environment
    chat: ChatFormat
    max_steps: int
    tells_earned: bool = False
    rewrites: Rewriting = "nothing"


@dataclass(frozen=True, slots=True)
class Played:
    """An episode that was played.

    Attributes:
        result: of the last action; its reward is the outcome.
        reply_s: time that each reply took.
    """

    result: StepResult = NOT_BEGUN
    reply_s: list[float] = field(default_factory=list)


class SdkAgent(Protocol):
    """An agent that plays by the replies of a model at an address."""

    def play(self, game: Game, episode_id: str) -> Played:
        """Play an episode to its end, without reporting its outcome."""
        ...


def build_agent(name: AgentName, url: str, http: Any = None) -> SdkAgent:
    """An agent of an SDK; the SDK has to be installed.

    Args:
        url: root of a server.
        http: client that sends the SDK's requests; None: its own.
    """
    given: dict[str, Any] = {"api_key": "unused", "max_retries": 0, "http_client": http}
    match name:
        case "openai":
            from openai import OpenAI

            return OpenAIAgent(OpenAI(base_url=f"{url}/v1", **given))
        case "anthropic":
            from anthropic import Anthropic

            return AnthropicAgent(Anthropic(base_url=url, **given))


class OpenAIAgent:
    """A loop of chat completions.

    Args:
        client: of the package `openai`.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._clock = datetime(2026, 11, 29, 8, tzinfo=UTC)  # so that a run depends on its seed alone

    def play(self, game: Game, episode_id: str) -> Played:
        """Play an episode."""
        client = self._client.with_options(default_headers={"X-Session-ID": episode_id})
        system = [{"role": "system", "content": game.chat.system}] if game.chat.system else []
        messages: list[Any] = [*system, {"role": "user", "content": game.environment.reset()}]
        tools = {"tools": list(game.chat.tools)} if game.chat.tools else {}
        played = Played()
        for _ in range(game.max_steps):
            self._clock += timedelta(seconds=7)
            sent = _rewritten(messages, game.rewrites, f"It is {self._clock:%Y-%m-%d %H:%M:%S}.")
            asked = perf_counter()
            answer = client.chat.completions.create(
                model="default", messages=sent, extra_headers=_earned(game, played), **tools
            )
            played.reply_s.append(perf_counter() - asked)
            reply = answer.choices[0].message
            messages.append(reply.model_dump(include={"role", "content", "tool_calls"}))
            calls = [ToolCall(c.function.name, c.function.arguments) for c in reply.tool_calls or ()]
            results = _results(game, calls, reply.content or "")
            played = Played(results[-1], played.reply_s)
            if played.result.ended:
                break
            messages += _told(results, [call.id for call in reply.tool_calls or ()])
        return played


def _rewritten(messages: Sequence[Any], rewriting: Rewriting, now: str) -> list[Any]:
    """A request's messages, as the agent changes them."""
    changed = [dict(message) for message in messages]
    results = [message for message in changed if message["role"] == "tool"]
    match rewriting:
        case "clock" | "task":
            role = "system" if rewriting == "clock" else "user"
            told = next(message for message in changed if message["role"] == role)
            told["content"] += f" {now}"
        case "reminder":
            changed[-1]["content"] += f"\n<system-reminder>{now} Use one tool at a time.</system-reminder>"
        case "cut":
            for result in results[:-_NEWEST_RESULTS]:
                result["content"] = "[cleared]"
    return changed


def _told(results: Sequence[StepResult], calls: Sequence[str]) -> list[Any]:
    """The results as the tools' messages, or as the user's if no tool was called."""
    if not calls:
        return [{"role": "user", "content": results[-1].observation}]
    pairs = zip(calls, results, strict=True)
    return [{"role": "tool", "tool_call_id": id, "content": r.observation} for id, r in pairs]


class AnthropicAgent:
    """A loop of messages.

    Args:
        client: of the package `anthropic`.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def play(self, game: Game, episode_id: str) -> Played:
        """Play an episode."""
        client = self._client.with_options(default_headers={"X-Session-ID": episode_id})
        fixed: dict[str, Any] = {"model": "default", "max_tokens": 1024}
        fixed |= {"system": game.chat.system} if game.chat.system else {}
        fixed |= {"tools": [_tool(t["function"]) for t in game.chat.tools]} if game.chat.tools else {}
        messages: list[Any] = [{"role": "user", "content": game.environment.reset()}]
        played = Played()
        for _ in range(game.max_steps):
            asked = perf_counter()
            reply = client.messages.create(messages=messages, extra_headers=_earned(game, played), **fixed)
            played.reply_s.append(perf_counter() - asked)
            content = [block.model_dump(exclude_none=True) for block in reply.content]
            messages.append({"role": "assistant", "content": content})
            uses = [block for block in content if block["type"] == "tool_use"]
            said = "".join(block["text"] for block in content if block["type"] == "text")
            calls = [ToolCall(use["name"], json.dumps(use["input"])) for use in uses]
            results = _results(game, calls, said)
            played = Played(results[-1], played.reply_s)
            if played.result.ended:
                break
            blocks: Any = [
                {"type": "tool_result", "tool_use_id": use["id"], "content": result.observation}
                for use, result in zip(uses, results, strict=bool(uses))
            ]
            messages.append({"role": "user", "content": blocks or results[-1].observation})
        return played


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    """A tool in Anthropic's shape."""
    told = {"name": function["name"], "description": function["description"]}
    return told | {"input_schema": function["parameters"]}


def _earned(game: Game, played: Played) -> dict[str, str]:
    """The header that tells what was earned before a request; none before the first."""
    if not game.tells_earned or played.result is NOT_BEGUN:
        return {}
    return {"X-QGuide-Earned": f"{played.result.reward:g}"}


def _results(game: Game, calls: Sequence[ToolCall], said: str) -> list[StepResult]:
    """The environment's answers to a reply's calls, or to its text if it calls nothing."""
    if not (calls and game.chat.tools):
        return [take(game.environment, game.chat.parse_action(said))]
    results: list[StepResult] = []
    for call in calls:
        ended = bool(results) and results[-1].ended
        results.append(results[-1] if ended else take(game.environment, call))
    return results
