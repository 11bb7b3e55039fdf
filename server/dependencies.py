"""What routes ask for, as named types."""

from typing import Annotated, cast

from fastapi import Depends, Request

from qnet.perturbation import Paraphraser
from server.episodes.service import Episodes
from server.models import Models
from server.settings import Settings
from server.telemetry import Telemetry


def _settings(request: Request) -> Settings:
    return cast(Settings, request.app.state.settings)


def _models(request: Request) -> Models:
    return cast(Models, request.app.state.models)


def _telemetry(request: Request) -> Telemetry:
    return cast(Telemetry, request.app.state.telemetry)


def _episodes(request: Request) -> Episodes:
    return cast(Episodes, request.app.state.episodes)


def _paraphraser(request: Request) -> Paraphraser | None:
    return cast("Paraphraser | None", request.app.state.paraphraser)


SettingsDep = Annotated[Settings, Depends(_settings)]
ModelsDep = Annotated[Models, Depends(_models)]
EpisodesDep = Annotated[Episodes, Depends(_episodes)]
ParaphraserDep = Annotated[Paraphraser | None, Depends(_paraphraser)]
TelemetryDep = Annotated[Telemetry, Depends(_telemetry)]
