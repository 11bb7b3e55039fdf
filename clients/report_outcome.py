"""Post the outcome of a coding agent's session to QGuide: whether a command, as of tests, succeeds.

    report_outcome.py http://127.0.0.1:8000 -- make test

A hook of Claude Code (`Stop`) or Codex (`Stop`, or `notify`), which name the session in JSON on
stdin or as the last argument. The command runs in the session's folder. QGUIDE_KEY is the server's
key, if it wants one. Nothing goes to stdout and the exit code is 0, so that the agent goes on.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

COMMAND_S = 1800
ANSWER_S = 30


def main(url: str, arguments: list[str]) -> None:
    """Run the command and post 1 if it succeeds, else 0."""
    told, command = read_hook(arguments)
    session = told.get("session_id") or told.get("thread-id")
    if not session or told.get("stop_hook_active"):
        return
    folder = Path(told.get("cwd") or ".")
    done = subprocess.run(command, cwd=folder, stdout=sys.stderr, timeout=COMMAND_S, check=False)
    request = Request(
        f"{url}/v1/episodes/{quote(session, safe='')}/outcome",
        json.dumps({"reward": float(done.returncode == 0)}).encode(),
        {"Content-Type": "application/json", "X-API-Key": os.environ.get("QGUIDE_KEY", "none")},
    )
    with urlopen(request, timeout=ANSWER_S) as answer:
        sys.stderr.write(answer.read().decode() + "\n")


def read_hook(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Session and folder as the agent tells them to its hook, and the command."""
    if arguments and arguments[-1].startswith("{"):
        return json.loads(arguments[-1]), arguments[:-1]
    return json.load(sys.stdin), arguments


if __name__ == "__main__":
    try:
        main(sys.argv[1].rstrip("/"), [one for one in sys.argv[2:] if one != "--"])
    except Exception as error:
        sys.stderr.write(f"no outcome was posted: {error}\n")
