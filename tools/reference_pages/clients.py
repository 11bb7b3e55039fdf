"""Page of the clients of others that were run against a server, from `results/clients.json`."""

import json
from pathlib import Path
from typing import Final

from tools.reference_pages.markdown import code, page, table

RESULTS: Final = Path(__file__).parents[2] / "results" / "clients.json"
_INTRODUCTION: Final = (
    "Programs and libraries of others, unmodified and with their defaults but for the address, key "
    "and model, against a server in front of a fake upstream. `make test-clients` installs these "
    "versions (`tests/clients/`), runs them, and writes `results/clients.json`, from which "
    "`make docs-reference` makes this page. Each answer is the best of five candidates."
)
_SETUPS: Final = (
    ("Claude Code", "`ANTHROPIC_BASE_URL=http://127.0.0.1:8000`, `ANTHROPIC_API_KEY=KEY`, `--model gpt`"),
    ("Codex", "`~/.codex/config.toml` as on [its page](responses.md#codex)"),
    (
        "Gemini CLI",
        "`GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:8000`, `GEMINI_API_KEY=KEY`, `-m gpt`; in "
        "`~/.gemini/settings.json` `security.auth.selectedType` is `gemini-api-key`",
    ),
    (
        "Qwen Code",
        "`--auth-type openai`, `OPENAI_BASE_URL=http://127.0.0.1:8000/v1`, `OPENAI_API_KEY=KEY`, `OPENAI_MODEL=gpt`",
    ),
    (
        "opencode",
        "in `opencode.json` a `provider` whose `npm` is `@ai-sdk/openai-compatible`, with "
        "`options.baseURL` `http://127.0.0.1:8000/v1`, `options.apiKey` and `models` "
        '`{"gpt": {}}`; '
        "`model` is `PROVIDER/gpt`",
    ),
    (
        "aider, mini-swe-agent",
        "`OPENAI_API_BASE=http://127.0.0.1:8000/v1`, `OPENAI_API_KEY=KEY`, the model `openai/gpt`; "
        "the second also `MSWEA_COST_TRACKING=ignore_errors`",
    ),
)
_EPISODES: Final = (
    "With `/episodes/ID` before the path (`http://127.0.0.1:8000/episodes/ID/v1`) all requests are "
    "steps of one [episode](episodes.md); Claude Code and Codex name their session "
    "[by themselves](episodes.md#coding-agents-without-any-set-up)."
)
_APIS: Final = {
    "Chat": "openai-sdk.md",
    "Completions": "openai-sdk.md",
    "Responses": "responses.md",
    "Messages": "anthropic-sdk.md",
    "Gemini": "gemini.md",
    "Ollama": "ollama.md",
}


def clients_page() -> str:
    """Table of clients: version, API, what was done and whether it went well."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["clients"]
    cells = [
        (
            row["client"],
            f"{code(row['package'])} {row['version']}",
            ", ".join(f"[{api}]({_APIS[api]})" for api in row["api"].split(", ")),
            row["does"],
            "passes" if row["passed"] else "**fails**",
        )
        for row in rows
    ]
    header = ("client", "version", "API", "what it does", "result")
    setups = table(("agent", "settings, for a policy `gpt`"), _SETUPS)
    return page("Clients that were tried", _INTRODUCTION, table(header, cells), "## Coding agents", setups, _EPISODES)
