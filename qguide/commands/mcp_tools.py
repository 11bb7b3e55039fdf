"""A running server's candidates, scores and outcomes as tools of an MCP host."""

from typing import Any, Final
from urllib.parse import quote

import httpx
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from qguide.server.own_bodies.schemas import CandidateMessage, ChatMessage

_TIMEOUT: Final = httpx.Timeout(900, connect=5)
"""As long as the server waits for slow upstreams by default; hosts have limits of their own."""

_INSTRUCTIONS: Final = (
    "Q is the return that a value function expects after an action. Before an important step, pass "
    "the history and a few possible next actions to score_candidates and take the chosen one, or "
    "let act draw them. Use one episode_id for all steps of a task, and report with "
    "episode_outcome how it ended."
)


def tools_of(url: str, api_key: str | None = None) -> MCPServer:
    """An MCP server whose tools ask the server at this address."""
    tools = _Tools(url, api_key)
    server = MCPServer("qguide", instructions=_INSTRUCTIONS, log_level="WARNING")
    for tool in (tools.score_candidates, tools.act, tools.episode_outcome):
        server.add_tool(tool)
    return server


class _Tools:
    """Tools of a host; the SDK reads names, arguments and docstrings from the methods."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def score_candidates(
        self,
        messages: list[ChatMessage],
        candidates: list[str | CandidateMessage],
        q_model: str | None = None,
        episode_id: str | None = None,
    ) -> dict[str, Any]:
        """Q of your own possible next actions, all different; `chosen` is the best one's index.

        `messages` is the history in OpenAI's format: the task, then actions (assistant) and
        observations (user or tool) in turn, the last one an observation.
        """
        return await self._ask(
            "/v1/score",
            messages=[one.model_dump(exclude_none=True) for one in messages],
            candidates=[one if isinstance(one, str) else one.model_dump(exclude_none=True) for one in candidates],
            q_model=q_model,
            episode_id=episode_id,
        )

    async def act(
        self,
        messages: list[ChatMessage],
        num_candidates: int = 5,
        policy: str | None = None,
        q_model: str | None = None,
        episode_id: str | None = None,
    ) -> dict[str, Any]:
        """Draw possible next actions from the server's policy; `action` is the one that is chosen by Q.

        `messages` is the history in OpenAI's format, its last message an observation.
        """
        return await self._ask(
            "/v1/act",
            messages=[one.model_dump(exclude_none=True) for one in messages],
            num_candidates=num_candidates,
            policy=policy,
            q_model=q_model,
            episode_id=episode_id,
        )

    async def episode_outcome(
        self, episode_id: str, reward: float, terminated: bool = True, observation: str = ""
    ) -> dict[str, Any]:
        """End an episode: the reward that it earned, 1 for success and 0 for failure.

        `terminated` is false if a limit of steps cut it off.
        """
        return await self._ask(
            f"/v1/episodes/{quote(episode_id, safe='')}/outcome",
            reward=reward,
            terminated=terminated,
            observation=observation,
        )

    async def _ask(self, path: str, **fields: Any) -> dict[str, Any]:
        body = {name: value for name, value in fields.items() if value is not None}
        try:
            async with httpx.AsyncClient(base_url=self._url, headers=self._headers, timeout=_TIMEOUT) as http:
                answer = await http.post(path, json=body)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise ToolError(f"no answer from the QGuide server at {self._url}: {error!r}") from error
        return _read(answer)


def _read(answer: httpx.Response) -> dict[str, Any]:
    """The answer's JSON, or the server's own message as an error that the model reads."""
    try:
        told = answer.json()
        if answer.is_success and isinstance(told, dict):
            return told
        message = f"{told['error']['code']}: {told['error']['message']}"
    except (ValueError, KeyError, TypeError):
        message = f"{answer.url} answered {answer.status_code} and no JSON of a QGuide server"
    raise ToolError(message)
