"""`qguide serve`: start the server."""

from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to bind; QGUIDE_HOST.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind; QGUIDE_PORT.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="embedded, scripted or a checkpoint folder.")
    ] = None,
    q_model: Annotated[
        str | None, typer.Option(help="embedded, scripted or a checkpoint folder.")
    ] = None,
) -> None:
    """Answer /v1/act and /v1/score; every other setting is in QGUIDE_… variables."""
    import uvicorn

    from server.app import create_app
    from server.settings import Settings
    from server.telemetry import configure_logging

    given: dict[str, Any] = {"host": host, "port": port, "policy": policy}
    if q_model is not None:
        given["q_models"] = {"default": q_model}
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        Console(stderr=True).print(str(error), style="red", markup=False)
        raise typer.Exit(2) from error
    configure_logging(settings.log_level)
    uvicorn.run(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    app()
