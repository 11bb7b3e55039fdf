"""A server with the part of vLLM's HTTP interface that QGuide uses, and a tiny model in torch."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import exp, inf
from pathlib import Path
from threading import Event, Thread
from typing import Any, Literal

import torch
from transformers import AutoModel, AutoModelForSequenceClassification

BLOCK = 16

Fault = Literal[
    "",
    "status_500",
    "status_400",
    "silence",
    "garbage",
    "not_base64",
    "too_narrow",
    "not_finite",
    "wrong_when_cached",
    "not_finite_when_cached",
    "one_state_short",
    "always_activated",
    "truncated",
    "lost_connection",
    "no_metrics",
    "other_traffic",
]


@dataclass
class ScriptedVllm:
    """The server's state, which a test may change while it runs.

    Attributes:
        fault: what it does wrong from now on.
        faults_left: how often; None for ever.
        trunk: answers /pooling.
        classifier: answers /classify.
        asked: the bodies of its requests.
        fixed: logits that it gives in place of the classifier's, one for each sequence.
        keys: the Authorization headers that it was sent.
    """

    trunk: Any
    classifier: Any
    model: str
    context: int
    caching: bool = True
    fault: Fault = ""
    faults_left: int | None = None
    fixed: list[float] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    released: Event = field(default_factory=Event)
    url: str = ""
    queries: int = 0
    hits: int = 0
    _blocks: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)

    def fails(self, *faults: Fault) -> Fault:
        """The fault, one of these, that the current request must show."""
        if self.fault not in faults or self.faults_left == 0:
            return ""
        if self.faults_left is not None:
            self.faults_left -= 1
        return self.fault

    @torch.inference_mode()
    def states(self, sequences: list[list[int]]) -> list[torch.Tensor]:
        """The last hidden state of each sequence alone."""
        return [self.trunk(torch.tensor([s])).last_hidden_state[0, -1] for s in sequences]

    @torch.inference_mode()
    def logits(self, sequences: list[list[int]]) -> list[list[float]]:
        """The classifier's values at the last token of each sequence alone."""
        values = [[value] for value in self.fixed] or [
            self.classifier.score(self.states_of(one)).tolist() for one in sequences
        ]
        return [[inf] for _ in values] if self.fails("not_finite") else values

    def states_of(self, token_ids: list[int]) -> torch.Tensor:
        """The last hidden state of the classifier's trunk; vLLM knows no padding."""
        trunk = getattr(self.classifier, self.classifier.base_model_prefix)
        state: torch.Tensor = trunk(torch.tensor([token_ids])).last_hidden_state[0, -1]
        return state

    def look_up(self, token_ids: list[int], salt: str) -> None:
        """Whole blocks that were seen with the salt are hits, but for the last token."""
        if not self.caching:
            return
        ends = range(BLOCK, len(token_ids) + 1, BLOCK)
        known = [end for end in ends if (salt, tuple(token_ids[:end])) in self._blocks]
        usable = [end for end in known if end < len(token_ids)]
        self.queries += len(token_ids)
        self.hits += max(usable, default=0)
        self._blocks.update((salt, tuple(token_ids[:end])) for end in ends)


@contextmanager
def scripted_vllm(folder: Path, *, model: str, context: int, classifies: bool = False) -> Iterator[ScriptedVllm]:
    """Serves the trunk in `folder`, or the classifier, until the block is left."""
    kind = AutoModelForSequenceClassification if classifies else AutoModel
    served: Any = kind.from_pretrained(folder, dtype=torch.float32).eval()
    trunk, classifier = (None, served) if classifies else (served, None)
    state = ScriptedVllm(trunk, classifier, model, context)
    handler = type("Handler", (_Handler,), {"state": state})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield state
        finally:
            state.released.set()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    state: ScriptedVllm

    def do_GET(self) -> None:
        state = self.state
        state.keys.add(self.headers["Authorization"])
        if self.path == "/v1/models":
            card = {"id": state.model, "object": "model", "max_model_len": state.context}
            self._send(200, json.dumps({"object": "list", "data": [card]}))
        elif state.fails("no_metrics"):
            self._send(200, "process_cpu_seconds_total 1.0\n")
        else:
            counters = {"queries": state.queries, "hits": state.hits}
            lines = [
                f'vllm:prefix_cache_{name}_total{{engine="0",model_name="{state.model}"}} {n:.1f}'
                for name, n in counters.items()
            ]
            self._send(200, "\n".join(["# TYPE vllm:prefix_cache_hits counter", *lines, ""]))

    def do_POST(self) -> None:
        state = self.state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        state.asked.append(body)
        if body["model"] != state.model:
            self._fail(404, f"The model `{body['model']}` does not exist.")
        elif state.fails("lost_connection"):
            self.close_connection = True
        elif state.fails("silence"):
            state.released.wait(10)
        elif state.fails("status_500"):
            self._send(500, "Traceback: a secret path")
        elif state.fails("status_400"):
            self._fail(400, "token id 9 is out of vocabulary")
        elif state.fails("garbage"):
            self._send(200, '{"data": "none"}')
        elif self.path == "/classify":
            self._classify(body)
        else:
            self._pool(body["input"], body.get("cache_salt", ""))

    def _classify(self, body: dict[str, Any]) -> None:
        sequences = body["input"]
        items = []
        for index, values in enumerate(self.state.logits(sequences)):
            wanted = body.get("use_activation", True) or self.state.fails("always_activated")
            # vLLM has no activation for a regression.
            if wanted and self.state.classifier.config.problem_type != "regression":
                values = [1 / (1 + exp(-value)) for value in values]
            found = {"index": index, "label": "LABEL_0", "probs": values}
            items.append(found | {"num_classes": len(values)})
        if self.state.fails("one_state_short"):
            items = items[:-1]
        tokens = sum(map(len, sequences)) - (1 if self.state.fails("truncated") else 0)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        self._send(200, json.dumps({"object": "list", "data": items[::-1], "usage": usage}))

    def _pool(self, sequences: list[list[int]], salt: str) -> None:
        state = self.state
        for token_ids in sequences:
            state.look_up(token_ids, salt)
        if state.fails("other_traffic"):
            state.queries, state.hits = state.queries + 1000, state.hits + 990
        encoded = [self._encode(one) for one in state.states(sequences)]
        if state.fails("one_state_short"):
            encoded = encoded[:-1]
        items = [{"index": i, "object": "pooling", "data": e} for i, e in enumerate(encoded)]
        tokens = sum(map(len, sequences)) - (1 if state.fails("truncated") else 0)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        # The order of the items is not what says which is which.
        self._send(200, json.dumps({"object": "list", "data": items[::-1], "usage": usage}))

    def _encode(self, hidden_D: torch.Tensor) -> str:
        of_hits: tuple[Fault, ...] = ("wrong_when_cached", "not_finite_when_cached") if self.state.hits else ()
        match self.state.fails("not_base64", "too_narrow", "not_finite", *of_hits):
            case "not_base64":
                return "%%%"
            case "too_narrow":
                hidden_D = hidden_D[1:]
            case "not_finite" | "not_finite_when_cached":
                hidden_D = hidden_D * torch.inf
            case "wrong_when_cached":
                hidden_D = -hidden_D
        return base64.b64encode(hidden_D.numpy().astype("<f4").tobytes()).decode()

    def _fail(self, status: int, message: str) -> None:
        self._send(status, json.dumps({"error": {"message": message, "code": status}}))

    def _send(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args: object) -> None:
        """Keeps quiet."""
