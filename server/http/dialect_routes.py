"""Dialects in which callers ask, as the modules of their routes declare them."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import APIRouter
from pydantic import BaseModel

from qguide.server.http.error_bodies import Failure, Told


@dataclass(frozen=True, slots=True)
class DialectRoutes:
    """The routes of a dialect, and what others need to know of it.

    Attributes:
        paths: whose errors its clients read, also where there is no route.
        error_of: an error as they expect it; its status is 400 for a malformed body.
        error_body: its schema.
        event: schema of the events of its streams, which is then in the OpenAPI document.
        error_event: name of the event by which a stream ends with an error.
        unversioned: paths below /v1 that clients may ask without it.
    """

    router: APIRouter
    paths: re.Pattern[str]
    error_of: Callable[[Failure], Told]
    error_body: type[BaseModel]
    event: type[BaseModel] | None = None
    error_event: str = ""
    unversioned: tuple[str, ...] = ()
