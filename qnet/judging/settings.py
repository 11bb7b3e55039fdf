"""Settings of a judge, the same in the server's settings and in job files."""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, FiniteFloat, JsonValue, StringConstraints, model_validator

JudgeMode = Literal["score", "rank"]
"""`score` asks for a digit per candidate; `rank` for one order of all candidates of a step."""

_SET_BY_THE_JUDGE: Final = frozenset({"model", "messages", "n", "stream", "stream_options", "logprobs", "top_logprobs"})


def _free(parameters: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if taken := sorted(_SET_BY_THE_JUDGE & parameters.keys()):
        raise ValueError(f"the judge sets {', '.join(taken)} itself; leave them out")
    return parameters


REASON: Final = "reason"
"""Name of the judge's reason beside its verdicts."""
MOST_CRITERIA: Final = 8

Criterion = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
CriterionText = Annotated[str, StringConstraints(strip_whitespace=True, pattern=r"^[^\r\n]+$", max_length=500)]


class JudgeSettings(BaseModel, frozen=True, extra="forbid"):
    """A judge's questions and its budget.

    Attributes:
        mode: `score` asks for a digit per candidate, `rank` for one order of all candidates of a step.
        prompt_file: text file with instructions of your own; without it the built-in ones are used.
        criteria: name of each criterion -> its description in one line, at most 8. The judge then
            gives a digit for each and a reason in one sentence, and Q is the weighted mean of the
            digits. For `score` only; probabilities are not asked for.
        weights: of criteria, by name; 1 for those that are not named.
        temperature: of the judge's answers; null leaves it to the upstream, which reasoning models need.
        max_tokens: longest answer; null leaves it to the upstream, which reasoning models need.
        logprobs: ask for the probabilities of the score's tokens, of which the score is the mean;
            an upstream that refuses them is asked again without. For `score` only.
        parameters: further parameters of every request, for example `reasoning_effort`.
        context: longest question in tokens, estimated at three bytes of text each; what is longer is not asked, or is
            asked with a window of the history (`long_history`). 0 asks whatever the upstream takes, without windows.
        parallel: maximum number of requests at the same time for one step.
        cached_answers: number of answers kept; what is kept is not asked again.
        calls_per_hour: maximum number of requests of each API key within an hour, or of all callers
            without keys; 0 is no limit. A request that its upstream's `retries` repeat counts once.
        tokens_per_hour: likewise for tokens read and generated.
        total_calls_per_hour: maximum number of requests of all keys together within an hour; 0 is no limit.
        total_tokens_per_hour: likewise for tokens.
        total_calls: maximum number of requests of a process, counted as in `calls_per_hour`; 0 is no limit.
        total_tokens: maximum number of tokens read and generated for a process; 0 is no limit.
    """

    mode: JudgeMode = "score"
    prompt_file: Path | None = None
    criteria: dict[Criterion, CriterionText] = Field(default={}, max_length=MOST_CRITERIA)
    weights: dict[str, Annotated[FiniteFloat, Field(ge=0)]] = {}
    temperature: float | None = Field(default=0.0, ge=0)
    max_tokens: int | None = Field(default=256, ge=1)
    logprobs: bool = True
    parameters: Annotated[dict[str, JsonValue], AfterValidator(_free)] = Field(default_factory=dict)
    context: int = Field(default=0, ge=0)
    parallel: int = Field(default=16, ge=1)
    cached_answers: int = Field(default=10_000, ge=0)
    calls_per_hour: int = Field(default=0, ge=0)
    tokens_per_hour: int = Field(default=0, ge=0)
    total_calls_per_hour: int = Field(default=0, ge=0)
    total_tokens_per_hour: int = Field(default=0, ge=0)
    total_calls: int = Field(default=0, ge=0)
    total_tokens: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _criteria_and_weights_fit(self) -> Self:
        if self.criteria and self.mode == "rank":
            raise ValueError("criteria need the mode 'score': a ranking has no verdicts")
        if REASON in self.criteria:
            raise ValueError(f"a criterion is named {REASON!r}, which the judge's reason is; rename it")
        if unknown := sorted(self.weights.keys() - self.criteria.keys()):
            raise ValueError(f"weights names {unknown[0]!r}, which is none of the criteria")
        if self.criteria and not sum(self.weight_of.values()):
            raise ValueError("all weights are 0; give one criterion a weight above it")
        return self

    @property
    def weight_of(self) -> dict[str, float]:
        """Weight of each criterion."""
        return {name: self.weights.get(name, 1.0) for name in self.criteria}
