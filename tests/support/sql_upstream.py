"""A fake upstream that answers InterCode-SQL's generated questions by calls of `execute_sql`."""

import json
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from qguide.server.chat.fake_openai import FakeUpstream
from qguide.training.environments.intercode_sql.tasks import generated_task

MODEL = "analyst-1"
TASKS = 5
GOLD = {generated_task(seed).question: generated_task(seed).gold for seed in range(TASKS)}


@dataclass
class Analyst(FakeUpstream):
    """Calls the tool with a look at the tables or with the right query, then hands it in.

    Choice k of turn t looks if t + k is even. Like OpenAI's, it refuses a history in which a tool
    call has no result.

    Attributes:
        calls_at_once: number of calls in a reply that looks at the tables.
    """

    calls_at_once: int = 1

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        if unanswered := _unanswered(body["messages"]):
            error = {"message": f"no result for {unanswered}", "type": "invalid_request_error"}
            return JSONResponse({"error": error}, status_code=400)
        return await super().complete(request)

    def _choice(self, body: dict[str, Any], index: int) -> dict[str, Any]:
        choice = super()._choice(body, index)
        messages = body["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        shift = turn + index + (body.get("seed") or 0)
        question = next(q for q in GOLD if q in messages[1]["content"])
        asked = any(
            GOLD[question] in call["function"]["arguments"]
            for message in messages
            for call in message.get("tool_calls") or ()
        )
        if asked:
            message: dict[str, Any] = {"role": "assistant", "content": "That is the answer."}
        elif shift % 2:
            message = _calling(["SHOW TABLES"] * self.calls_at_once, shift)
        else:
            message = _calling([GOLD[question]], shift)
        finish = "tool_calls" if "tool_calls" in message else "stop"
        return choice | {"message": message, "finish_reason": finish}


def _calling(queries: list[str], shift: int) -> dict[str, Any]:
    calls = [
        {
            "id": f"call_{shift}_{number}",
            "type": "function",
            "function": {"name": "execute_sql", "arguments": json.dumps({"query": query})},
        }
        for number, query in enumerate(queries)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _unanswered(messages: list[dict[str, Any]]) -> set[str]:
    """Ids of calls that the messages right after them do not answer."""
    for number, message in enumerate(messages):
        wanted = {call["id"] for call in message.get("tool_calls") or ()}
        answers = messages[number + 1 : number + 1 + len(wanted)]
        missing = wanted - {each.get("tool_call_id") for each in answers if each["role"] == "tool"}
        if missing:
            return missing
    return set()
