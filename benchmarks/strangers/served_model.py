"""A mock LLM behind OpenAI's API, by the server of the errands' example.

python -m benchmarks.strangers.served_model helpdesk --port 8001
"""

import runpy
from http.server import ThreadingHTTPServer
from typing import Annotated, Any

import typer

from benchmarks.strangers.catalogue import EVERY, Stranger, stranger_of
from benchmarks.strangers.errands import EXAMPLE
from qguide.qnet.chat_messages import FunctionCall, calls_of, plain_message, text_of
from qguide.qnet.types import BatchPolicy, Message, SampleRequest, Sampling


def build_server(mock: BatchPolicy, port: int = 0) -> ThreadingHTTPServer:
    """A server of one mock; port 0 takes a free one."""
    handler: Any = runpy.run_path(str(EXAMPLE / "model.py"))["Handler"]

    def replies(self: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The mock's replies to a conversation."""
        seed = body.get("seed") or self.chance.getrandbits(63)
        sampling = Sampling(temperature=body.get("temperature"), seed=seed)
        history = tuple(map(_message, body["messages"]))
        request = SampleRequest(history, body.get("n") or 1, sampling)
        return [plain_message(each.message) for each in mock.sample_batch([request])[0]]

    served = type("Served", (handler,), {"replies": replies})
    return ThreadingHTTPServer(("127.0.0.1", port), served)


def _message(turn: dict[str, Any]) -> Message:
    calls = calls_of([FunctionCall.model_validate(call) for call in turn.get("tool_calls") or ()])
    return Message(turn["role"], text_of(turn["content"]), calls, turn.get("tool_call_id", ""))


def main(
    stranger: Annotated[
        Stranger, typer.Argument(help=f"One of {', '.join(EVERY)}.", parser=stranger_of, metavar="ENVIRONMENT")
    ],
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8001,
    world: Annotated[int, typer.Option(help="World of which it knows half.")] = 0,
) -> None:
    """Serve a mock until interrupted."""
    build_server(stranger.policy(world), port).serve_forever()


if __name__ == "__main__":
    typer.run(main)
