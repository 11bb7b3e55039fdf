"""Whatever the OpenAPI document allows, and what it forbids: no failure, no undocumented answer.

    make test-openapi       10,000 cases and more; QGUIDE_OPENAPI_CASES says how many

The server is real and its models are the fakes. The one 503 that a caller can ask for, by wanting
an answer sooner than can be, is not asked for.
"""

import os
from collections import Counter
from collections.abc import Iterator
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

from server.app import create_app
from server.dependencies import TIMEOUT_HEADER
from server.settings import SCRIPTED, Settings
from tests.serving import serving_app

EVERYDAY_CASES = 60
CASES = int(os.environ.get("QGUIDE_OPENAPI_CASES", EVERYDAY_CASES))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

SENSIBLE = {
    "messages": [{"role": "user", "content": "look"}],
    "candidates": ["go", "stay"],
    "num_candidates": 3,
    "q_model": None,
    "policy": None,
}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSchema]:
    """The document of a server with all of its routes."""
    models = {"demo": SCRIPTED, "other": SCRIPTED}
    folder: Path = tmp_path_factory.mktemp("models")
    served = Settings(policy=SCRIPTED, q_models=models, admin=True, models_dir=folder)
    with serving_app(create_app(served)) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


def test_every_answer_is_documented_and_none_is_a_failure(document: BaseSchema) -> None:
    sent: Counter[tuple[str, int]] = Counter()
    found = document.get_all_operations()
    operations = [one.ok() for one in found]  # type: ignore[union-attr]  # an Err fails here
    with_bodies = [operation for operation in operations if operation.body]
    assert len(with_bodies) >= 6
    with requests.Session() as session:
        for operation in operations:
            # Without a body there are hardly two different requests.
            cases = -(-CASES // len(with_bodies)) if operation.body else 10
            _send(operation, cases, session, sent)
    total = sent.total()
    print(f"{total:,} cases: {dict(sorted(sent.items()))}")  # noqa: T201
    assert total >= CASES
    assert {status for _, status in sent} >= {200, 400, 404, 422}
    assert sent["POST /v1/score", 200] > 0


def _send(
    operation: APIOperation,  # type: ignore[type-arg]
    cases: int,
    session: requests.Session,
    sent: "Counter[tuple[str, int]]",
) -> None:
    """Half of the cases are valid, where there are invalid ones.

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
            if sensible and isinstance(case.body, dict) and "messages" in case.body:
                case.body = {**case.body, **_only(SENSIBLE, case.body)}
            response = case.call_and_validate(session=session, checks=CHECKS)
            sent[operation.label, response.status_code] += 1

        send()


def _only(fields: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name in body}
