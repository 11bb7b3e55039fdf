"""What routes ask for, as named types."""

from typing import Annotated, cast

from fastapi import Depends, Request

from server.episodes.service import Episodes
from server.models import Models
from server.settings import Settings
from server.stepping import Stepper
from server.telemetry import Telemetry


def _settings(request: Request) -> Settings:
    return cast(Settings, request.app.state.settings)


def _models(request: Request) -> Models:
    return cast(Models, request.app.state.models)


def _telemetry(request: Request) -> Telemetry:
    return cast(Telemetry, request.app.state.telemetry)


def _episodes(request: Request) -> Episodes:
    return cast(Episodes, request.app.state.episodes)


SettingsDep = Annotated[Settings, Depends(_settings)]
ModelsDep = Annotated[Models, Depends(_models)]
EpisodesDep = Annotated[Episodes, Depends(_episodes)]
TelemetryDep = Annotated[Telemetry, Depends(_telemetry)]


async def _stepper(
    request: Request,
    settings: SettingsDep,
    models: ModelsDep,
    episodes: EpisodesDep,
    telemetry: TelemetryDep,
) -> Stepper:
    return Stepper(settings, models, episodes, request.app.state.paraphraser, telemetry)


StepperDep = Annotated[Stepper, Depends(_stepper)]
