"""Requests that go on to an upstream of the same dialect as they came, and their answers.

Of the fields only those of the allow-list (`qguide.server.settings.allowed_parameters`) go on.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import BaseModel

from qguide.qnet.dialects.responses_requests import COMPACTIONS, compacted_turn
from qguide.qnet.native_requests import NativeRequest
from qguide.qnet.policies.upstream_dialects import DIALECTS, DialectName
from qguide.server.guidance.step_types import GuidedStepRequest, GuidedStepResult
from qguide.server.settings.allowed_parameters import native_fields
from qguide.server.settings.settings import Settings

_OWN: Final = {"qguide", "stream", "stream_options"}  # fields that are for this server
_READ: Final = {name: None for dialect in DIALECTS.values() for name in dialect.prompt}
"""Fields in which an address would be fetched, of every dialect: the operator may let others pass."""


def as_it_came(
    step: GuidedStepRequest, body: BaseModel, dialect: DialectName, settings: Settings, *, without: frozenset[str]
) -> GuidedStepRequest:
    """The step with the caller's own request, if the policy's upstream is asked in its dialect.

    Args:
        without: fields that this server takes and that the dialect has not.
    """
    if step.policy.dialect != dialect or step.policy.upstream_model is None:
        return step
    given = body.model_dump(by_alias=True, exclude_unset=True, exclude=_OWN | without)
    passed, warnings = native_fields(given, dialect, settings.caller_fields)
    for name in _READ:
        settings.reach.check_addresses(passed.get(name), name)
    if isinstance(items := passed.get("input"), list):
        # What this server compacted no upstream reads: the message that says it is sent.
        turns = [compacted_turn(item) if item.get("type") in COMPACTIONS else None for item in items]
        passed["input"] = [
            item if turn is None else {"type": "message", **turn} for item, turn in zip(items, turns, strict=True)
        ]
    native = NativeRequest(dialect, passed, step.history)
    return replace(step, sampling=replace(step.sampling, native=native), warnings=warnings)


def native_answer(taken: GuidedStepResult, dialect: DialectName) -> Mapping[str, Any] | None:
    """The chosen candidate as the upstream answered it; None if that was in another dialect."""
    native = taken.decision.candidates[taken.decision.chosen].native
    return native.body if native and native.dialect == dialect else None
