"""A stand-in for a hosted model behind OpenAI's API: it runs the errands of agent.py by guessing.

python model.py --port 8001

It calls the right tool and takes the right thing, but it knows neither where things lie nor where
people are: there it draws one of three places or rooms, so two of three such calls are wrong.
"""

import argparse
import json
import random
import re
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

MODEL = "guesser"


def values_of(tools: list[dict[str, Any]], name: str) -> tuple[str, list[str]]:
    """A tool's argument and the values that it may have."""
    (function,) = (t["function"] for t in tools if t["function"]["name"] == name)
    ((argument, schema),) = function["parameters"]["properties"].items()
    return argument, schema["enum"]


def next_call(body: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The tool call that follows the conversation."""
    told = body["messages"][-1]["content"]
    history = " ".join(message.get("content") or "" for message in body["messages"])
    seen = re.search(r"The (\w+) is here", told)
    name = "take" if seen else "bring" if "You have the" in history else "open"
    argument, values = values_of(body["tools"], name)
    value = seen[1] if seen else chance.choice(values)
    function = {"name": name, "arguments": json.dumps({argument: value})}
    return {"id": f"call_{chance.getrandbits(64):016x}", "type": "function", "function": function}


def complete(body: dict[str, Any], replies: list[dict[str, Any]], chance: random.Random) -> dict[str, Any]:
    """A chat completion whose choices are these replies."""
    choices = [
        {"index": index, "message": reply, "finish_reason": "tool_calls" if reply.get("tool_calls") else "stop"}
        for index, reply in enumerate(replies)
    ]
    prompt = sum(len(str(message).split()) for message in body["messages"])
    drawn = sum(len(str(choice["message"]).split()) for choice in choices)
    usage = {"prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn}
    return {
        "id": f"chatcmpl-{chance.getrandbits(64):016x}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": choices,
        "usage": usage,
    }


class Handler(BaseHTTPRequestHandler):
    """The two routes that QGuide asks for."""

    protocol_version = "HTTP/1.1"
    chance: ClassVar[random.Random] = random.Random(0)

    def do_GET(self) -> None:
        """GET /v1/models."""
        self._answer({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        """POST /v1/chat/completions."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(complete(body, self.replies(body), self.chance))

    def replies(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The model's `n` replies to a conversation."""
        return [
            {"role": "assistant", "content": None, "tool_calls": [next_call(body, self.chance)]}
            for _ in range(body.get("n") or 1)
        ]

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _answer(self, content: dict[str, Any]) -> None:
        text = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="Serve a model that guesses.")
    parser.add_argument("--port", type=int, default=8001)
    ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler).serve_forever()


if __name__ == "__main__":
    main()
