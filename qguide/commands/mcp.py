"""`qguide mcp`: what a running server offers, as tools of an MCP host.

The host starts this program and speaks the Model Context Protocol over its standard streams; what
is written to stdout is protocol, and the log goes to stderr. Or it is given an address of this
machine: no key guards that, so no other machine reaches it.
"""

from typing import Annotated

import typer


def mcp(
    url: Annotated[
        str, typer.Option(envvar="QGUIDE_URL", help="Address of the running server.")
    ] = "http://127.0.0.1:8000",
    api_key: Annotated[str | None, typer.Option(envvar="QGUIDE_API_KEY", help="A key of that server.")] = None,
    http_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Serve http://127.0.0.1:PORT/mcp in place of the streams.")
    ] = None,
) -> None:
    """Offer a running server's guidance as tools to an MCP host, over stdin and stdout or HTTP."""
    from qguide.commands.mcp_tools import tools_of

    tools = tools_of(url, api_key)
    if http_port is None:
        tools.run()
    else:
        tools.run("streamable-http", port=http_port)
