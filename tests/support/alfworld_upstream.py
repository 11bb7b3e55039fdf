"""A fake upstream that plays ALFWorld by calls of a tool: mistakes, and the expert's action."""

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request

from qguide.qnet.chat_messages import text_of
from qguide.qnet.types import History, Message, SampleRequest, Sampling
from qguide.training.environments.alfworld.expert.policy import ExpertPolicy
from qguide.training.environments.alfworld.game.observation import TASK_OPENING
from qguide.training.trajectory import parse_action, react_reply

OUTPUT = "Output:\n"
"""Text before the output of a command in the results of Codex's tool."""


@dataclass
class AlfWorldUpstream:
    """Chat completions that call a tool with an action; the last choice's is the expert's.

    Every other choice is a mistake, unless `errs` is False. All are drawn after the conversation
    alone, in which a user's message has the game's first observation. A game that is won is
    answered by a text.

    Attributes:
        tool, argument: names of the tool and of its argument.
        before: text before the action in the argument.
        errs: False makes all choices the expert's.
        won: a text of the last observation of a game that is won.
        sessions: the X-Session-ID headers of the requests so far.
    """

    tool: str = "act"
    argument: str = "action"
    before: str = ""
    errs: bool = True
    won: str = "The task is done."
    sessions: list[str | None] = field(default_factory=list)
    expert: ExpertPolicy = field(default_factory=ExpertPolicy)

    def app(self) -> FastAPI:
        """Build the FastAPI application."""
        app = FastAPI()
        app.add_api_route("/v1/chat/completions", self.complete, methods=["POST"])
        return app

    async def complete(self, request: Request) -> dict[str, Any]:
        """POST /v1/chat/completions."""
        body = await request.json()
        self.sessions.append(request.headers.get("x-session-id"))
        n = body.get("n") or 1
        messages = [self._choice(reply) for reply in self._replies(body["messages"], n)]
        choices = [{"index": k, "message": message} for k, message in enumerate(messages)]
        usage = {"prompt_tokens": len(body["messages"]), "completion_tokens": n}
        return {"object": "chat.completion", "choices": choices, "usage": usage}

    def _replies(self, messages: list[dict[str, Any]], n: int) -> list[str]:
        if self.won in text_of(messages[-1]["content"]):
            return [self.won] * n
        history = self._history(messages)
        if not self.errs:
            return self._drawn(history, n, Sampling(temperature=0.0))
        mistakes = self._drawn(history, n - 1, Sampling(temperature=1.0, seed=len(history)))
        return [*mistakes, *self._drawn(history, 1, Sampling(temperature=0.0))]

    def _drawn(self, history: History, n: int, sampling: Sampling) -> list[str]:
        [drawn] = self.expert.sample_batch([SampleRequest(history, n, sampling)])
        return [candidate.message.content for candidate in drawn]

    def _history(self, messages: list[dict[str, Any]]) -> History:
        """Observations and actions in turn, as the expert reads them."""
        turns: list[Message] = []
        for message in messages:
            text = text_of(message.get("content")).rpartition(OUTPUT)[2]
            if calls := message.get("tool_calls"):
                [call] = calls
                said = json.loads(call["function"]["arguments"])[self.argument]
                reply = react_reply("", said.removeprefix(self.before))
                turns.append(Message("assistant", reply))
            elif turns or (message["role"] == "user" and TASK_OPENING in text):
                turns.append(Message("user", text.strip()))
        return tuple(turns)

    def _choice(self, reply: str) -> dict[str, Any]:
        if reply == self.won:
            return {"role": "assistant", "content": reply}
        thought = reply.rpartition("Action:")[0].removeprefix("Thought:").strip()
        arguments = json.dumps({self.argument: self.before + parse_action(reply)})
        function = {"name": self.tool, "arguments": arguments}
        call = {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
        return {"role": "assistant", "content": thought, "tool_calls": [call]}
