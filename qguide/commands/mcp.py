"""`qguide mcp`: what a running server offers, as tools of an MCP host.

The host starts this program and speaks the Model Context Protocol over its standard streams; what
is written to stdout is protocol, and the log goes to stderr.
"""

from typing import Annotated

import typer


def mcp(
    url: Annotated[
        str, typer.Option(envvar="QGUIDE_URL", help="Address of the running server.")
    ] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None, typer.Option(envvar="QGUIDE_API_KEY", help="A key of that server.")
    ] = None,
) -> None:
    """Offer a running server's guidance as tools to an MCP host, over stdin and stdout."""
    from qguide.commands.mcp_tools import tools_of

    tools_of(url, api_key).run()
