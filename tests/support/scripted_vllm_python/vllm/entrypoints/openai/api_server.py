"""`/health` and `/pooling` of texts."""

import base64
import json
import sys
from argparse import ArgumentParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer


class _Handler(BaseHTTPRequestHandler):
    trunk: Any
    tokenizer: Any

    def do_GET(self) -> None:
        """It is healthy."""
        self._send({})

    def do_POST(self) -> None:
        """The last hidden state of each text."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        encode = self.tokenizer.encode
        sequences = [encode(text, add_special_tokens=False) for text in body["input"]]
        rows = [{"index": i, "data": self._state(ids)} for i, ids in enumerate(sequences)]
        tokens = sum(map(len, sequences))
        self._send({"data": rows[::-1], "usage": {"prompt_tokens": tokens}})

    @torch.inference_mode()
    def _state(self, token_ids: list[int]) -> str:
        hidden_D = self.trunk(torch.tensor([token_ids])).last_hidden_state[0, -1]
        return base64.b64encode(hidden_D.numpy().astype("<f4").tobytes()).decode()

    def _send(self, answer: dict[str, Any]) -> None:
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        """Keeps quiet."""


def main() -> None:
    """Serve until the process ends."""
    parser = ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    options, _ = parser.parse_known_args(sys.argv[1:])
    _Handler.trunk = AutoModel.from_pretrained(options.model, dtype=torch.float32).eval()
    _Handler.tokenizer = AutoTokenizer.from_pretrained(options.model)
    with ThreadingHTTPServer(("127.0.0.1", options.port), _Handler) as server:
        server.serve_forever()


main()
