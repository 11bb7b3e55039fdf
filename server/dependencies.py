"""What routes ask for, as named types.

All of them are coroutines, because FastAPI sends plain functions to a thread.
"""

from typing import Annotated, cast

from fastapi import Depends, Request

from server.drain import Drain
from server.models import Models
from server.settings import Settings
from server.telemetry import Telemetry


async def _settings(request: Request) -> Settings:
    return cast(Settings, request.app.state.settings)


async def _models(request: Request) -> Models:
    return cast(Models, request.app.state.models)


async def _telemetry(request: Request) -> Telemetry:
    return cast(Telemetry, request.app.state.telemetry)


async def _drain(request: Request) -> Drain:
    return cast(Drain, request.app.state.drain)


SettingsDep = Annotated[Settings, Depends(_settings)]
ModelsDep = Annotated[Models, Depends(_models)]
TelemetryDep = Annotated[Telemetry, Depends(_telemetry)]
DrainDep = Annotated[Drain, Depends(_drain)]
