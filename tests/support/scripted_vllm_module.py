"""Plays `python -m vllm.entrypoints.openai.api_server`: a process with vLLM's options and routes.

`install` writes it as a package that a child process finds. Told to by the path /die, it ends, and
by /hang it answers nobody from then on; with VLLM_PLAYS=refusal it ends before it answers.
"""

from pathlib import Path

SOURCE = """
import argparse, json, os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
for option in ("--model", "--served-model-name", "--host", "--port", "--max-model-len"):
    parser.add_argument(option)
parser.add_argument("--allowed-media-domains", nargs="+")
options = parser.parse_args()
print("loading", options.model, flush=True)
print("media of", *(options.allowed_media_domains or ["any host"]), flush=True)
if os.environ.get("VLLM_PLAYS") == "refusal":
    sys.exit("no such model: " + options.model)
if os.environ.get("VLLM_PLAYS") == "silence":
    time.sleep(60)
# The engine: a child that would outlive it.
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("engine", engine.pid, flush=True)


class Handler(BaseHTTPRequestHandler):
    hangs = False

    def do_GET(self):
        if self.path == "/die":
            os._exit(3)
        if Handler.hangs:
            time.sleep(600)
        Handler.hangs = self.path == "/hang"
        self.answer(200, {})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] != "Bearer " + os.environ["VLLM_API_KEY"]:
            return self.answer(401, {})
        choices = [
            {
                "index": k,
                "message": {"role": "assistant", "content": "Action: " + ("look", "go to")[k % 2]},
                "finish_reason": "stop",
            }
            for k in range(asked.get("n", 1))
        ]
        usage = {"prompt_tokens": 3, "completion_tokens": 2 * len(choices)}
        self.answer(200, {"choices": choices, "usage": usage, "model": asked["model"]})

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


ThreadingHTTPServer((options.host, int(options.port)), Handler).serve_forever()
"""


def install(folder: Path) -> Path:
    """Write the package; the folder belongs on the child's PYTHONPATH."""
    package = folder / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(SOURCE)
    return folder
