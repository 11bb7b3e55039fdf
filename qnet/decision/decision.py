"""Options of a guided step, and its outcome: the chosen candidate, and everything it was chosen from."""

from dataclasses import dataclass, field, replace
from typing import Literal, Self

from qguide.qnet.decision.early_stop import UntilDecided
from qguide.qnet.decision.selection import DEFAULT_TAU, Prior, PriorBy, Reason, SelectionName, prior_of, ranking
from qguide.qnet.decision.threshold import BelowThreshold, Threshold
from qguide.qnet.types import Candidate, HistoryWindow, Message, Sampling, Verdict
from qguide.qnet.work import NOTHING, TokenUsage, UpstreamCalls

DEFAULT_BATCH = 2

Fallback = Literal["error", "first"]
"""Result of a step for which no Q can be given: an error, or, by its old name, the likeliest
candidate, which is the first where all are equally likely."""


@dataclass(frozen=True, slots=True)
class Guidance:
    """Options of one guided step.

    Attributes:
        num_candidates: M; with `rise_over` the most that are drawn.
        sampling: how candidates are drawn. Adaptive M draws later batches with other seeds, and none of them greedily.
        rise_over: draw only until Q is above this, the previous step's Q by the same Q model; None draws all M.
        until: draw only until no further draw can change the choice; None draws all M.
        max_wait_s: end the draws after this time, however few have come; None waits for all. Who
            answers what `decide` asks for keeps it.
        batch: candidates drawn and scored at a time in these cases.
        compares: the Q model reads all candidates of a step at once, so none is scored before all are drawn.
        at_least: candidates that are drawn however high the Q.
        always_score: read Q even if all candidates are equal: the next step has to rise over it.
        fallback: `first` takes the likeliest candidate where no Q can be given, for whatever reason, and draws no more:
            the one drawn most often, of equal ones the greedy reply, which is drawn first.
        too_long: the same where the history is too long for the Q model; None: as `fallback` says.
        threshold: what to do where the best Q is too low; None: nothing.
        selection: "argmax" of Q is the papers'; "posterior" weighs Q against the prior. Candidates
            that were drawn below the threshold are not the policy's own, so with them it is argmax.
        tau: temperature of Q in the posterior, at least 0.
        prior: source of the prior; votes where a log-likelihood is unknown.
        explore: seed of a random choice among the candidates, none of which is scored; None: the choice is by Q.
        greedy_weight: added to the log prior of the greedy reply, where it is drawn first.
    """

    num_candidates: int
    sampling: Sampling
    rise_over: float | None = None
    until: UntilDecided | None = None
    max_wait_s: float | None = None
    compares: bool = False
    batch: int = DEFAULT_BATCH
    at_least: int = 1
    always_score: bool = False
    fallback: Fallback = "error"
    too_long: Fallback | None = None
    threshold: Threshold | None = None
    selection: SelectionName = "argmax"
    tau: float = DEFAULT_TAU
    prior: PriorBy = "votes"
    explore: int | None = None
    greedy_weight: float = 0.0

    @property
    def as_finished(self) -> bool:
        """True if the step may be decided while candidates are still being drawn."""
        return self.until is not None or self.max_wait_s is not None

    @property
    def may_end_early(self) -> bool:
        """True if fewer than M candidates may decide the step."""
        return self.rise_over is not None or self.as_finished


@dataclass(frozen=True, slots=True)
class StepUsage:
    """Tokens that a decision cost.

    Attributes:
        prompt_tokens: of the history as the policy reads it, as often as it was read.
        cached_tokens: found in the Q model's prefix cache.
        cached_prompt_tokens: found in the upstream's prefix cache.
        written_prompt_tokens: put into it, if the upstream says so.
        paraphrasing: of the paraphrases; nothing where they were known.
        upstream: requests to the upstream that gave the Q-values, whose tokens are among the scored
            and cached ones; None for a trained Q model.
        below_threshold: of `refine` and `escalate`; included in the policy's tokens.
    """

    prompt_tokens: int
    completion_tokens: int
    scored_tokens: int
    cached_tokens: int
    cached_prompt_tokens: int = 0
    written_prompt_tokens: int = 0
    paraphrasing: TokenUsage = NOTHING
    upstream: UpstreamCalls | None = None
    below_threshold: TokenUsage = NOTHING
    cost: float | None = None

    def at_least(self, answered: TokenUsage) -> Self:
        """The usage with that of the policy's upstreams, of which candidates that nobody took have a part."""
        return replace(
            self,
            prompt_tokens=max(self.prompt_tokens, answered.prompt_tokens),
            completion_tokens=max(self.completion_tokens, answered.completion_tokens),
            cached_prompt_tokens=max(self.cached_prompt_tokens, answered.cached_tokens),
            written_prompt_tokens=max(self.written_prompt_tokens, answered.written_tokens),
            cost=max((cost for cost in (self.cost, answered.cost) if cost is not None), default=None),
        )


@dataclass(frozen=True, slots=True)
class StepTimings:
    """Milliseconds per stage, waiting included."""

    paraphrase_ms: float = 0.0
    sample_ms: float = 0.0
    score_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen action and everything it was chosen from.

    Attributes:
        q_values: one per candidate; equal candidates have equal values. None where none was
            read: there was nothing to choose between, or no Q model that could tell.
        posterior: share of each candidate's effect by Q and the prior; None where the choice was
            by Q alone, or Q told nothing.
        rules: values of each candidate that were compared before Q; empty without any.
        verdicts: of each candidate by a judge's criteria, None where it was not asked; empty without criteria.
        unguided: why there is no guidance though there was a choice; None where there is.
        out_of_domain: the reason is that the state is outside the Q model's domain.
        distance: of the state from that domain, 1 being the limit; None if not measured.
        draws_saved: candidates of M that were not needed: not drawn, or not to their end.
        perturbed: candidates that were drawn under a paraphrase of the task.
    """

    chosen: int
    reason: Reason
    candidates: tuple[Candidate, ...]
    q_values: tuple[float, ...] | None
    usage: StepUsage
    prior: Prior | None = None
    posterior: tuple[float, ...] | None = None
    tau: float | None = None
    rules: tuple[tuple[float, ...], ...] = ()
    verdicts: tuple[Verdict | None, ...] = ()
    unguided: str | None = None
    out_of_domain: bool = False
    distance: float | None = None
    draws_saved: int = 0
    perturbed: int = 0
    warnings: tuple[str, ...] = ()
    timings: StepTimings = field(default_factory=StepTimings)
    window: HistoryWindow | None = None
    below_threshold: BelowThreshold | None = None

    @property
    def action(self) -> Message:
        """The agent's next turn."""
        return self.candidates[self.chosen].message

    @property
    def own_candidates(self) -> tuple[Candidate, ...]:
        """The candidates that were drawn before any action of a threshold."""
        taken = self.below_threshold.taken if self.below_threshold else ()
        later = {index for action in taken for index in action.candidates}
        return tuple(c for index, c in enumerate(self.candidates) if index not in later)

    @property
    def guided(self) -> bool:
        """True if a Q model chose among different candidates."""
        return self.unguided_reason is None

    @property
    def unguided_reason(self) -> str | None:
        """Reason why no Q model has chosen; None if one has."""
        if self.unguided is not None or self.distinct_candidates > 1:
            return self.unguided
        if len(self.candidates) == 1:
            return "one candidate was drawn, so there was nothing to choose between"
        return f"all {len(self.candidates)} candidates are equal, so there was no choice"

    @property
    def distinct_candidates(self) -> int:
        """Number of different candidates."""
        return len({candidate.message for candidate in self.candidates})

    @property
    def shares(self) -> tuple[float, ...]:
        """Prior share of each candidate's effect."""
        return (self.prior or prior_of([c.message for c in self.candidates])).shares

    @property
    def prior_by(self) -> PriorBy:
        """Source of the prior."""
        return self.prior.by if self.prior else "votes"

    @property
    def ranked(self) -> list[int]:
        """Indices of the candidates, the best first: the chosen one leads."""
        values = self.posterior or (self.q_values if self.unguided is None else None)
        messages = [candidate.message for candidate in self.candidates]
        order = ranking(messages, values or self.shares, rules=self.rules)
        return [self.chosen, *(index for index in order if index != self.chosen)]

    @property
    def verdict_of(self) -> dict[str, Verdict]:
        """The verdict on each text that a judge with criteria was asked about."""
        pairs = zip(self.candidates, self.verdicts, strict=False)  # empty without criteria
        return {candidate.message.text: verdict for candidate, verdict in pairs if verdict}

    @property
    def scored_candidates(self) -> list[tuple[Candidate, float | None]]:
        """Every candidate with its Q, None where none was read."""
        q_values = self.q_values or (None,) * len(self.candidates)
        return list(zip(self.candidates, q_values, strict=True))
