"""Requests that go on to an upstream of the same dialect as they came, and their answers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import BaseModel

from qnet.native import DialectName, NativeRequest
from server.guidance.step_types import GuidedStepRequest, GuidedStepResult

_OWN: Final = {"qguide", "stream", "stream_options"}
"""Fields that are for this server."""


def as_it_came(
    step: GuidedStepRequest, body: BaseModel, dialect: DialectName, *, without: frozenset[str]
) -> GuidedStepRequest:
    """The step with the caller's own request, if the policy's upstream is asked in its dialect.

    Args:
        without: fields that this server takes and that the dialect has not.
    """
    if step.policy.dialect != dialect:
        return step
    given = body.model_dump(by_alias=True, exclude_unset=True, exclude=_OWN | without)
    native = NativeRequest(dialect, given, step.history)
    return replace(step, sampling=replace(step.sampling, native=native))


def native_answer(taken: GuidedStepResult, dialect: DialectName) -> Mapping[str, Any] | None:
    """The chosen candidate as the upstream answered it; None if that was in another dialect."""
    native = taken.decision.candidates[taken.decision.chosen].native
    return native.body if native and native.dialect == dialect else None
