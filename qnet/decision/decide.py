"""One guided step as a generator: draw candidates, score them, take the best (QLASS, algorithm 4).

The generator yields what it needs and is sent the answer, so the same code decides for a served request
(`qguide.qnet.decision.guide`) and for many games played at once (`qguide.training.rollouts`):

    candidates = yield SampleRequest(history, n, sampling)      list[Candidate]
    result = yield ScoreRequest(history, messages)              ScoreResult

What cannot be answered is raised where it was asked for. With `until` or `max_wait_s` the answer to
a draw may be those of its candidates that have come; the others are asked for again, and none come
once no others will. Who answers says why.

With `selection` "posterior" the policy's own preference counts beside Q: see
`qguide.qnet.decision.selection`. Where the best Q is below `threshold`, further candidates may be
drawn, or none is taken: see `qguide.qnet.decision.threshold`.

With `until` draws stop once none could change the choice: see `qguide.qnet.decision.early_stop`.

With `rise_over` M is adaptive: draws stop once a candidate's Q is above the previous step's. RRO
stops drawing once the process reward of a step is no lower than before; here Q stands for it,
because nothing can be rolled out at inference (ours). An equal Q does not stop the draws: rewards
of roll-outs stay equal along a way that always wins, but a discounted Q rises at every good step.
"""

import logging
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from qguide.qnet.chat_messages import tools_in
from qguide.qnet.decision.decision import Decision, Guidance, StepUsage
from qguide.qnet.decision.early_stop import is_decided
from qguide.qnet.decision.selection import Prior, Selection, explore, prior_of, select
from qguide.qnet.decision.threshold import ThresholdActions, with_note
from qguide.qnet.errors import HistoryTooLongError, InvalidCandidatesError, OutOfDomainError, QGuideError
from qguide.qnet.types import (
    Candidate,
    DrawRole,
    History,
    HistoryWindow,
    Message,
    SampleRequest,
    Sampling,
    ScoreRequest,
    ScoreResult,
    ThresholdAction,
    Verdict,
    spent_on,
)
from qguide.qnet.work import NOTHING, UpstreamCalls, total_of

_log = logging.getLogger(__name__)

_SEEDS = 2**63
_EXPLORED = "a random candidate was taken, because what follows it teaches the Q model"
_SAME_Q = "the Q model gave all candidates the same value, so the likeliest was taken"

DecisionProcess = Generator[SampleRequest | ScoreRequest, Any, Decision]


def decide(history: History, guidance: Guidance) -> DecisionProcess:
    """Draw M candidates, score the distinct ones, take the one with the highest Q or posterior.

    Each candidate is scored once, however often it is drawn. If all are equal, none is scored
    unless `always_score` or adaptive M wants its Q.
    """
    if guidance.num_candidates < 1 or guidance.batch < 1:
        raise InvalidCandidatesError(
            f"num_candidates is {guidance.num_candidates}; ask for at least 1"
            if guidance.num_candidates < 1
            else f"a batch has {guidance.batch} candidates; draw at least 1 at a time"
        )
    step = _Step(history, guidance)
    while n := step.draws_due():
        drawn: list[Candidate] = yield SampleRequest(history, n, step.sampling())
        step.take(drawn)
        if request := step.score_request():
            try:
                step.add_scores(request, (yield request))
            except QGuideError as error:
                step.give_up(str(error), error)
            except Exception as error:  # its message may quote a prompt, so callers never see it
                step.give_up("the Q model failed", error)
                _log.error("the Q model failed", exc_info=error)
    if guidance.threshold is None or not step.scored:
        return step.decision()
    actions = ThresholdActions(guidance.threshold, own=len(step.candidates))
    yield from _act_below_threshold(step, actions)
    return step.decision(actions)


def _act_below_threshold(
    step: "_Step", actions: ThresholdActions
) -> Generator[SampleRequest | ScoreRequest, Any, None]:
    """Take the threshold's actions until the best Q is not below; none of them fails the step."""
    while action := actions.next(step.highest_q):
        if action == "stop":
            actions.stop()
            return
        drawn: list[Candidate] = []
        judged: UpstreamCalls | None = None
        try:
            drawn = yield step.further_draw(action, actions.threshold.num_candidates)
            if not drawn:  # the time is up
                return
            if request := step.score_request([candidate.message for candidate in drawn]):
                result: ScoreResult = yield request
                judged = result.upstream
                step.add_scores(request, result)
        except QGuideError as error:
            actions.fail(action, drawn, str(error), judged=judged)
        except Exception as error:  # its message may quote a prompt, so callers never see it
            actions.fail(action, drawn, "an internal error", judged=judged)
            _log.error("%s failed", action, exc_info=error)
        else:
            best_q, first = step.highest_q(drawn), len(step.candidates)
            actions.add(action, drawn, judged=judged, first=first, best_q=best_q)
            step.candidates += drawn


class _Step:
    """The candidates drawn and scored so far, and what scoring them cost."""

    def __init__(self, history: History, guidance: Guidance) -> None:
        self.candidates: list[Candidate] = []
        self._history = history
        self._guidance = guidance
        self._q_of: dict[Message, float] = {}
        self._rules_of: dict[Message, tuple[float, ...]] = {}
        self._verdict_of: dict[Message, Verdict] = {}
        self._out_of_domain = False
        self._distance: float | None = None
        self._unguided = None if guidance.explore is None else _EXPLORED
        self._scored_tokens = 0
        self._cached_tokens = 0
        self._upstream: UpstreamCalls | None = None
        self._window: HistoryWindow | None = None
        self._ended = False

    def take(self, drawn: Sequence[Candidate]) -> None:
        """Add candidates, the greedy one in front; none if no others will come."""
        assert drawn or self.candidates, "a policy draws at least one candidate, or raises"
        self._ended = not drawn
        for candidate in drawn:
            at = 0 if candidate.greedy and self.candidates and not self.candidates[0].greedy else len(self.candidates)
            self.candidates.insert(at, candidate)

    def draws_due(self) -> int:
        """Candidates to draw next; 0 once the step can be decided."""
        guidance, drawn = self._guidance, len(self.candidates)
        left = guidance.num_candidates - drawn
        if self._ended:
            return 0
        if not guidance.may_end_early:
            return left if not drawn else 0
        settled = drawn >= guidance.at_least and self._is_settled(left)
        return 0 if settled else min(guidance.batch, left)

    def _is_settled(self, left: int) -> bool:
        """True if the draws that are left are not needed."""
        guidance = self._guidance
        if (rise_over := guidance.rise_over) is not None:
            return self._unguided is not None or any(q > rise_over for q in self._q_of.values())
        if guidance.until is None or self._rules_of or (guidance.sampling.first_is_greedy and not self._has_greedy):
            return False
        return is_decided(
            self._prior(),
            self._q_values(),
            guidance.until,
            left=left,
            tau=guidance.tau if guidance.selection == "posterior" else None,
            greedy_weight=guidance.greedy_weight if self._has_greedy else 0.0,
        )

    @property
    def _has_greedy(self) -> bool:
        """True if the first candidate is the greedy reply; others may come before it."""
        return self._guidance.sampling.first_is_greedy and self.candidates[0].greedy is not False

    def sampling(self) -> Sampling:
        """The request's sampling; for a later batch, with another seed and no greedy draw."""
        sampling, drawn = self._guidance.sampling, len(self.candidates)
        if not drawn:
            return sampling
        seed = None if sampling.seed is None else (sampling.seed + drawn) % _SEEDS
        return replace(sampling, seed=seed, first_greedy=False)

    def score_request(self, further: Sequence[Message] = ()) -> ScoreRequest | None:
        """The candidates, `further` ones included, whose Q is still unknown and needed; None if there are none."""
        messages = Counter((*self._messages, *further))
        unknown = tuple(message for message in messages if message not in self._q_of)
        guidance = self._guidance
        at_end = guidance.compares or (guidance.until is not None and guidance.until.by_votes)
        if at_end and self.draws_due():
            return None  # what votes are worth is known once all are cast
        bounded = guidance.until is not None and not guidance.until.by_votes
        compared = guidance.rise_over is not None or guidance.threshold is not None or bounded
        needed = len(messages) > 1 or guidance.always_score or compared
        if not unknown or not needed or self._unguided is not None:
            return None
        logprob_of = {one.message: one.logprob for one in self.candidates}
        return ScoreRequest(
            self._history,
            unknown,
            counts=tuple(messages[message] for message in unknown),
            logprobs=tuple(logprob_of.get(message) for message in unknown),
            tools=tools_in(guidance.sampling.parameters),
        )

    def add_scores(self, request: ScoreRequest, result: ScoreResult) -> None:
        """Keep the Q-values of one request."""
        # For its checks alone: a value that is not finite must not be kept.
        select(request.candidates, result.q_values)
        self._q_of.update(zip(request.candidates, result.q_values, strict=True))
        self._rules_of.update(zip(request.candidates, result.rules, strict=False))  # or empty
        self._verdict_of.update(zip(request.candidates, result.verdicts, strict=False))
        self._scored_tokens += result.computed_tokens
        self._cached_tokens += result.cached_tokens
        self._window = result.window or self._window
        self._distance = result.distance
        if result.upstream is not None:
            self._upstream = result.upstream + (self._upstream or UpstreamCalls())

    def further_draw(self, action: ThresholdAction, n: int) -> SampleRequest:
        """The draw of `refine` or `escalate`."""
        role: DrawRole = "refine" if action == "refine" else "escalate"
        noted = with_note(self._history, self._messages, self._verdict_of)
        history = noted if role == "refine" else self._history
        return SampleRequest(history, n, self.sampling(), role=role)

    def give_up(self, reason: str, error: Exception) -> None:
        """Go on without a Q, or raise the error where the caller wants no fallback."""
        fallback = self._guidance.fallback
        if isinstance(error, HistoryTooLongError):
            fallback = self._guidance.too_long or fallback
        elif isinstance(error, OutOfDomainError):
            fallback = "first"  # nothing failed: the policy alone is right here
            self._out_of_domain = True
            self._distance = error.distance
        if fallback == "error":
            raise error
        self._unguided = reason

    def decision(self, actions: ThresholdActions | None = None) -> Decision:
        """The choice among what was drawn.

        Args:
            actions: those of the threshold; None if there is none, or no Q to compare with it.
        """
        q_values = self._q_values()
        own = self.candidates[: actions.own] if actions else self.candidates
        prior = self._prior()
        selection = self._selection(q_values, prior, own=len(own))
        further = actions.spent if actions else NOTHING
        spent = total_of([spent_on(own), further])
        window = () if self._window is None else (self._window.warning,)
        return Decision(
            chosen=selection.chosen,
            reason=selection.reason,
            candidates=tuple(self.candidates),
            q_values=q_values,
            prior=prior,
            posterior=selection.posterior,
            tau=None if selection.posterior is None else self._guidance.tau,
            rules=self._rules,
            verdicts=tuple(map(self._verdict_of.get, self._messages)) if self._verdict_of else (),
            usage=StepUsage(
                prompt_tokens=spent.prompt_tokens,
                completion_tokens=spent.completion_tokens,
                scored_tokens=self._scored_tokens,
                cached_tokens=self._cached_tokens,
                cached_prompt_tokens=spent.cached_tokens,
                written_prompt_tokens=spent.written_tokens,
                cost=spent.cost,
                upstream=self._upstream,
                below_threshold=further,
            ),
            unguided=_SAME_Q if selection.reason == "likeliest" else self._unguided,
            out_of_domain=self._out_of_domain,
            distance=self._distance,
            draws_saved=self._guidance.num_candidates - len(own) if self._guidance.may_end_early else 0,
            warnings=(*window, *self._warnings, *(actions.warnings if actions else ())),
            window=self._window,
            below_threshold=actions.result if actions else None,
        )

    @property
    def scored(self) -> bool:
        """True if Q-values were read and may be used."""
        return self._unguided is None and bool(self._q_of)

    def highest_q(self, further: Sequence[Candidate] = ()) -> float:
        """Highest Q of the step's candidates and of these."""
        return max(self._q_of[c.message] for c in (*self.candidates, *further))

    @property
    def _messages(self) -> list[Message]:
        return [candidate.message for candidate in self.candidates]

    def _q_values(self) -> tuple[float, ...] | None:
        if self._unguided is not None or not self._q_of:
            return None
        return tuple(self._q_of[message] for message in self._messages)

    def _prior(self) -> Prior:
        return prior_of(
            self._messages,
            by=self._guidance.prior,
            logprobs=[candidate.logprob for candidate in self.candidates],
            tokens=[candidate.completion_tokens for candidate in self.candidates],
            greedy=0 if self._has_greedy else None,
            greedy_weight=self._guidance.greedy_weight,
        )

    @property
    def _warnings(self) -> tuple[str, ...]:
        """Warnings of parameters that upstreams refused."""
        left_out = sorted({name for candidate in self.candidates for name in candidate.left_out})
        return (f"left out, because the upstream refuses it: {', '.join(left_out)}",) if left_out else ()

    @property
    def _rules(self) -> tuple[tuple[float, ...], ...]:
        return tuple(self._rules_of[message] for message in self._messages) if self._rules_of else ()

    def _selection(self, q_values: Sequence[float] | None, prior: Prior, *, own: int) -> Selection:
        """The choice; `own` of the candidates were drawn before any action of the threshold."""
        guidance = self._guidance
        if q_values is not None:
            weighed = guidance.selection == "posterior" and own == len(self.candidates)
            return select(
                self._messages, q_values, prior=prior, tau=guidance.tau if weighed else None, rules=self._rules
            )
        if guidance.explore is not None:
            return explore(prior, guidance.explore)
        if self._unguided is not None:
            return Selection(prior.likeliest, "fallback")
        return Selection(0, "only_candidate" if len(self.candidates) == 1 else "unanimous")
