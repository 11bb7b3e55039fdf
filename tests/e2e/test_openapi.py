"""Requests that the OpenAPI document allows or forbids: no failure, no undocumented answer.

What the document allows is never refused as malformed: the two agree on what a body is.

    make test-openapi       10,000 cases and more, half of them for each server

The servers are real and their models are the fakes: one as it comes, one as a team has it, with
keys, episodes that are written and an upstream, the fake that ships. The one 503 that a caller can
ask for, by wanting an answer sooner than can be, is not asked for.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import booleans
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.generation.case import Case
from schemathesis.schemas import APIOperation, BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.schemas import OpenApiSchema

from qguide.server.app import create_app
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.http.keys import create_key
from qguide.server.routes.dependencies import TIMEOUT_HEADER
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.serving import serving_app

SNAKE_CASE = re.compile(r"'[a-z]+(_[a-z]+)+':")
EVERYDAY_CASES = 60
ENOUGH_CASES = 10_000
"""So many that every route gets hundreds; with fewer, chance decides which answers are seen."""
CASES = int(os.environ.get("QGUIDE_OPENAPI_CASES", EVERYDAY_CASES))
SERVERS = ("as it comes", "for a team")
BODILESS_CASES = 3 if CASES == EVERYDAY_CASES else 10
CASES_OF_ONE = -(-CASES // len(SERVERS))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

SENSIBLE = {
    "messages": [{"role": "user", "content": "look"}],
    "input": "look",
    "prompt": "look",
    "candidates": ["go", "stay"],
    "num_candidates": 3,
    "q_model": None,
    "policy": None,
    "model": None,
}
PLACES = {"episode_id": "known", "model_id": "demo"}
STRANGERS = 10
"""One request in so many has a key that nobody has."""


@dataclass(frozen=True)
class Served:
    """A server's OpenAPI document, a key, and the statuses that the tests must see."""

    document: BaseSchema
    headers: dict[str, str]
    answers: frozenset[tuple[str, int]]


SCORED = ("POST /v1/score", 200)


@pytest.fixture(params=[pytest.param(SERVERS[0], marks=pytest.mark.slow), SERVERS[1]])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """A server with all of its routes."""
    with (_for_a_team if request.param == SERVERS[1] else _as_it_comes)(tmp_path) as one:
        yield one


@contextmanager
def _as_it_comes(folder: Path) -> Iterator[Served]:
    with serving_app(create_app(_settings(folder))) as url:
        yield Served(_document(url), {}, frozenset({SCORED}))


@contextmanager
def _for_a_team(folder: Path) -> Iterator[Served]:
    keys_file = folder / "keys.json"
    headers = {"X-API-Key": create_key(keys_file, "root", admin=True)}
    with serving_app(FakeUpstream().app()) as behind:
        settings = _settings(
            folder,
            policy="behind",
            upstreams={"behind": Upstream.model_validate({"url": f"{behind}/v1", "model": "m"})},
            paraphraser=SCRIPTED,
            keys_file=keys_file,
            public_docs=True,
            episodes_dir=folder / "episodes",
        )
        with serving_app(create_app(settings)) as url:
            step = {"messages": SENSIBLE["messages"], "episode_id": PLACES["episode_id"]}
            assert requests.post(f"{url}/v1/act", json=step, headers=headers).status_code == 200
            answers = {
                SCORED,
                ("POST /v1/score", 401),
                ("POST /v1/act", 200),
                ("POST /v1/chat/completions", 200),
                ("POST /v1/responses", 200),
                ("POST /v1/messages", 200),
                ("POST /v1/episodes/{episode_id}/outcome", 200),
                ("POST /v1/episodes/{episode_id}/outcome", 409),
                ("GET /v1/models/{model_id}", 200),
            }
            yield Served(_document(url), headers, frozenset(answers))


def _settings(folder: Path, **more: Any) -> Settings:
    models = {"demo": SCRIPTED, "other": SCRIPTED}
    given: dict[str, Any] = {"policy": SCRIPTED, "q_models": models, "admin": True, "models_dir": folder}
    return Settings(**given | more)


def _document(url: str) -> OpenApiSchema:
    # Imported above, as `from_url` would import it deep in the call stack, where the parser of
    # Python 3.11 may fail.
    document: OpenApiSchema = schemathesis.openapi.from_url(f"{url}/openapi.json", timeout=120)
    return document


def test_every_answer_is_documented_and_none_is_a_failure(served: Served) -> None:
    sent: Counter[tuple[str, int]] = Counter()
    found = served.document.get_all_operations()
    operations = [one.ok() for one in found]  # type: ignore[union-attr]  # an Err fails here
    with_bodies = [operation for operation in operations if operation.body]
    assert len(with_bodies) >= 6
    with requests.Session() as session:
        # Few random bodies make sense, so one that does is sent, too.
        [score] = (operation for operation in operations if operation.label == SCORED[0])
        body: Any = {name: SENSIBLE[name] for name in ("messages", "candidates")}
        case = score.Case(body=body, media_type="application/json", headers=served.headers)
        response = case.call_and_validate(session=session, checks=CHECKS)
        sent[score.label, response.status_code] += 1
        for operation in operations:
            # Without a body there are hardly two different requests.
            cases = -(-CASES_OF_ONE // len(with_bodies)) if operation.body else BODILESS_CASES
            _send(operation, cases, session, served.headers, sent)
    total = sent.total()
    print(f"{total:,} cases: {dict(sorted(sent.items()))}")  # noqa: T201
    assert total >= CASES_OF_ONE
    assert {status for _, status in sent} >= {200, 400, 404, 422}
    assert (401 in {status for _, status in sent}) == bool(served.headers)
    assert SCORED in sent
    if CASES >= ENOUGH_CASES:
        assert served.answers <= sent.keys()


def _send(
    operation: APIOperation,  # type: ignore[type-arg]
    cases: int,
    session: requests.Session,
    headers: dict[str, str],
    sent: "Counter[tuple[str, int]]",
) -> None:
    """Send cases of an operation, half of them invalid if it has invalid ones.

    To most that is valid the answer is 400: a history drawn at random makes no sense. Half of the
    cases get fields that do.
    """
    modes = list(GenerationMode) if operation.body else [GenerationMode.POSITIVE]
    for mode in modes:

        @settings(
            max_examples=-(-cases // len(modes)),
            deadline=None,
            derandomize=CASES == EVERYDAY_CASES,  # the same every day
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode), sensible=booleans())
        def send(case: Case, sensible: bool) -> None:  # type: ignore[type-arg]
            case.headers.pop(TIMEOUT_HEADER, None)
            case.headers.pop("Authorization", None)  # the document allows it; it holds no key
            stranger = sent.total() % STRANGERS == STRANGERS - 1
            case.headers.update({"X-API-Key": "nobody's"} if stranger else headers)
            if sensible:
                case.path_parameters.update(_only(PLACES, case.path_parameters))
            if sensible and isinstance(case.body, dict) and case.body.keys() & {"input", "messages", "prompt"}:
                case.body = {**case.body, **_only(SENSIBLE, case.body)}
            response = case.call_and_validate(session=session, checks=CHECKS)
            assert case.meta is not None
            if case.meta.generation.mode is GenerationMode.POSITIVE and not _of_gemini(case.body):
                assert code_of(response) != "malformed_body", (response.text, case.body)
            sent[operation.label, response.status_code] += 1

        send()


def _of_gemini(body: Any) -> bool:
    """True if a name may be one of protocol buffers, under which Gemini reads a field, too.

    Its schema has the other name alone, so that a value of any type can be drawn for this one:
    Hypothesis draws names from the program's own.
    """
    written = repr(body)
    return "'contents':" in written and SNAKE_CASE.search(written) is not None


def code_of(response: Any) -> str:
    """The code of a refused body; "" for any other answer."""
    if response.status_code not in (400, 422):
        return ""
    error = response.json()["error"]
    if isinstance(error, str):  # Ollama's, which has no code
        return ""
    match error.get("details"):
        case [reason, *_]:  # Google's
            return str(reason["reason"])
        case {"error_code": code}:  # Anthropic's
            return str(code)
    return str(error["code"])


def _only(fields: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """The fields that the body has, except those that are null."""
    return {name: value for name, value in fields.items() if body.get(name) is not None}
