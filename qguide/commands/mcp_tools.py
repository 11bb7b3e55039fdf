"""`qguide mcp`: a running server's candidates, scores and outcomes as tools of an MCP host.

The host starts this program and speaks the Model Context Protocol over its standard streams; what
is written to stdout is protocol, and the log goes to stderr.
"""

from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import httpx
import typer

if TYPE_CHECKING:
    from mcp.server import MCPServer

_DEFAULT_URL: Final = "http://127.0.0.1:8000"
_TIMEOUT: Final = httpx.Timeout(900, connect=5)
"""As long as the server waits for slow upstreams by default; hosts have limits of their own."""

_INSTRUCTIONS: Final = (
    "Q is the return that a value function expects after an action. Before an important step, pass "
    "the history and a few possible next actions to score_candidates and take the chosen one, or "
    "let act draw them. Use one episode_id for all steps of a task, and report with "
    "episode_outcome how it ended."
)


def mcp(
    url: Annotated[
        str, typer.Option(envvar="QGUIDE_URL", help="Address of the running server.")
    ] = _DEFAULT_URL,
    api_key: Annotated[
        str | None, typer.Option(envvar="QGUIDE_API_KEY", help="A key of that server.")
    ] = None,
) -> None:
    """Offer a running server's guidance as tools to an MCP host, over stdin and stdout."""
    tools_of(url, api_key).run()


def tools_of(url: str, api_key: str | None = None) -> "MCPServer":
    """An MCP server whose tools ask the server at this address."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    from qguide.server.own_bodies.schemas import CandidateMessage, ChatMessage

    server = MCPServer("qguide", instructions=_INSTRUCTIONS, log_level="WARNING")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def ask(path: str, **fields: Any) -> dict[str, Any]:
        body = {name: value for name, value in fields.items() if value is not None}
        try:
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT) as http:
                answer = await http.post(path, json=body)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise ToolError(f"no answer from the QGuide server at {url}: {error!r}") from error
        return _read(answer, ToolError)

    @server.tool()
    async def score_candidates(
        messages: list[ChatMessage],
        candidates: list[str | CandidateMessage],
        q_model: str | None = None,
        episode_id: str | None = None,
    ) -> dict[str, Any]:
        """Q of your own possible next actions, all different; `chosen` is the best one's index.

        `messages` is the history in OpenAI's format: the task, then actions (assistant) and
        observations (user or tool) in turn, the last one an observation.
        """
        return await ask(
            "/v1/score",
            messages=[one.model_dump(exclude_none=True) for one in messages],
            candidates=[
                one if isinstance(one, str) else one.model_dump(exclude_none=True)
                for one in candidates
            ],
            q_model=q_model,
            episode_id=episode_id,
        )

    @server.tool()
    async def act(
        messages: list[ChatMessage],
        num_candidates: int = 5,
        policy: str | None = None,
        q_model: str | None = None,
        episode_id: str | None = None,
    ) -> dict[str, Any]:
        """Draw possible next actions from the server's policy; `action` is the one of highest Q.

        `messages` is the history in OpenAI's format, its last message an observation.
        """
        return await ask(
            "/v1/act",
            messages=[one.model_dump(exclude_none=True) for one in messages],
            num_candidates=num_candidates,
            policy=policy,
            q_model=q_model,
            episode_id=episode_id,
        )

    @server.tool()
    async def episode_outcome(
        episode_id: str, reward: float, terminated: bool = True, observation: str = ""
    ) -> dict[str, Any]:
        """End an episode: the reward that it earned, 1 for success and 0 for failure.

        `terminated` is false if a limit of steps cut it off.
        """
        return await ask(
            f"/v1/episodes/{quote(episode_id, safe='')}/outcome",
            reward=reward,
            terminated=terminated,
            observation=observation,
        )

    return server


def _read(answer: httpx.Response, refused: type[Exception]) -> dict[str, Any]:
    """The answer's JSON, or the server's own message as an error that the model reads."""
    try:
        told = answer.json()
        if answer.is_success and isinstance(told, dict):
            return told
        message = f"{told['error']['code']}: {told['error']['message']}"
    except (ValueError, KeyError, TypeError):
        message = f"{answer.url} answered {answer.status_code} and no JSON of a QGuide server"
    raise refused(message)
