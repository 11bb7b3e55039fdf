"""OpenTelemetry's GenAI conventions: attributes of guided steps, and an event for each Q.

They are set on the span of the request, which is the operation that a candidate's evaluation
belongs to: the span of the draw has ended before there is a Q. Texts are never recorded.
See https://github.com/open-telemetry/semantic-conventions-genai.
"""

from collections.abc import Sequence
from typing import Final

from qguide.qnet.decision.decision import StepUsage
from qguide.qnet.types import Sampling
from qguide.server.observability.tracing import Attributes, Tracing

EVALUATION: Final = "gen_ai.evaluation.result"
_Q_VALUE: Final = "q_value"
"""Name of the evaluation."""


def record_draw(
    tracing: Tracing,
    *,
    model: str,
    num_candidates: int,
    sampling: Sampling,
    episode_id: str | None,
) -> None:
    """Record what a step asks of its policy, before it draws."""
    if not tracing.records:
        return
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "qguide",
        "gen_ai.request.model": model,
        "gen_ai.request.choice.count": num_candidates,
    }
    given = {
        "gen_ai.conversation.id": episode_id,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.max_tokens": sampling.max_tokens,
    }
    tracing.annotate(attributes | {k: v for k, v in given.items() if v is not None})


def record_usage(tracing: Tracing, usage: StepUsage) -> None:
    """Record the tokens that a step's policy read and generated."""
    if not tracing.records:
        return
    tracing.annotate(
        {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_prompt_tokens,
            "qguide.usage.scored_tokens": usage.scored_tokens,
            "qguide.usage.cached_tokens": usage.cached_tokens,
        }
    )


def record_q_values(
    tracing: Tracing,
    q_values: Sequence[float],
    *,
    chosen: int,
    q_model: str,
    episode_id: str | None = None,
) -> None:
    """Record an evaluation for each candidate, in their order.

    Args:
        episode_id: of a step that draws nothing.
    """
    if not tracing.records:
        return
    if episode_id is not None:
        tracing.annotate({"gen_ai.conversation.id": episode_id})
    for index, q_value in enumerate(q_values):
        tracing.add_event(
            EVALUATION,
            {
                "gen_ai.evaluation.name": _Q_VALUE,
                "gen_ai.evaluation.score.value": q_value,
                "gen_ai.evaluation.score.label": "chosen" if index == chosen else "not_chosen",
                "qguide.candidate.index": index,
                "qguide.q_model": q_model,
            },
        )
