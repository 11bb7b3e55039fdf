"""Scoring of the caller's own candidates, for every route; each distinct one is scored once."""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from time import perf_counter

from qguide.qnet.decision.guide import SCORING
from qguide.qnet.decision.history_window import LongHistory
from qguide.qnet.decision.selection import Distinct, Selection, distinct, select
from qguide.qnet.errors import InvalidCandidatesError, InvalidRequestError
from qguide.qnet.types import History, Message, ScoreRequest, ScoreResult
from qguide.server.episodes.service import EARNED_HEADER, OUTCOME_HEADER
from qguide.server.episodes.state import Offer, ServedEpisode
from qguide.server.guidance.step_options import (
    SCORE,
    Choices,
    SelectionRule,
    distance_of,
    domain_of,
    least_read_of,
    reason_unread,
    score_in_window,
    selection_rule,
)
from qguide.server.guidance.step_types import RequestService
from qguide.server.observability.request_context import record_q_values
from qguide.server.own_bodies.history import TriedCandidates, check_size, defect_of, to_candidates
from qguide.server.own_bodies.schemas import CandidateMessage, ChoiceOptions, ScoreItem
from qguide.server.q_models.served import ServedQModel
from qguide.server.q_models.threaded import QModelLease
from qguide.server.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Scored:
    """The scored candidates of one history, repeated ones included, and the choice among them."""

    result: ScoreResult
    selection: Selection
    score_ms: float
    prior: tuple[float, ...] | None  # share of each candidate's effect; None if its draws are unknown
    tau: float | None
    unguided_reason: str | None
    out_of_domain: bool | None  # that is the reason; None where neither a domain was asked nor a window read


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringService(RequestService):
    """Scores the caller's candidates within the server's limits and the request's deadline."""

    def candidates(self, given: Sequence[str | CandidateMessage]) -> TriedCandidates:
        """Validate the caller's candidates and their observations, and convert them to messages."""
        most, most_bytes = self.settings.max_candidates, self.settings.max_text_bytes
        return to_candidates(given, most=most, most_bytes=most_bytes)

    def drawn_candidates(self, item: ScoreItem) -> TriedCandidates:
        """The candidates of an item, with what it says of their draws."""
        tried = self.candidates(item.candidates)
        if item.greedy is not None and item.greedy >= len(tried.messages):
            raise InvalidRequestError(
                f"greedy is {item.greedy}, but there are {len(tried.messages)} candidates; the first is 0"
            )
        tried = replace(
            tried,
            counts=tuple(item.counts or ()),
            logprobs=tuple(item.logprobs or ()),
            tools=tuple(item.tools or ()),
            greedy=item.greedy,
        )
        tried.prior("votes")  # refuses numbers that are not one per candidate
        return tried

    def documents(self, texts: Sequence[str]) -> tuple[Message, ...]:
        """Validate a reranker's documents, which may repeat, and convert them to messages."""
        most = self.settings.max_candidates
        if not 1 <= len(texts) <= most:
            raise InvalidCandidatesError(f"there are {len(texts)} documents; send 1 to {most} (QGUIDE_MAX_CANDIDATES)")
        check_size("documents", texts, self.settings.max_text_bytes)
        for index, text in enumerate(texts):
            if defect := defect_of(text):
                raise InvalidCandidatesError(f"documents[{index}] {defect}")
        return tuple(Message("assistant", text) for text in texts)

    async def hold(self, name: str | None, episode_id: str | None) -> AbstractContextManager[QModelLease]:
        """Lease the Q model of that name for scores that are no step of an episode.

        Without a name it is what guides the caller's key, or the episode.
        """
        for header, said in ((OUTCOME_HEADER, self.outcome), (EARNED_HEADER, self.earned)):
            if said is not None:
                raise InvalidRequestError(
                    f"the header {header} is of a step of an episode, and this request only scores; post the outcome "
                    "to /v1/episodes/ID/outcome"
                )
        named = self._episode(episode_id)
        episode = None if named is None else await self.episodes.find(named)
        return self._lease(name, episode_id, await self._learned(name, episode))

    async def _learned(self, name: str | None, episode: ServedEpisode | None) -> ServedQModel | None:
        """The version that the caller's key has learned and that guides; None: another is asked."""
        if self.learning is None or name is not None:
            return None
        return await self.learning.asked(episode)

    def _lease(
        self, name: str | None, episode_id: str | None, learned: ServedQModel | None = None
    ) -> AbstractContextManager[QModelLease]:
        if learned is not None:
            return self.models.q_models.lease(learned, episode_id=self._episode(episode_id))
        return self.models.q_models.hold(name, episode_id=self._episode(episode_id))

    def _episode(self, named: str | None) -> str | None:
        """The episode that the request names, or else its session."""
        return self.session_id if named is None else named

    async def step(
        self,
        history: History,
        candidates: TriedCandidates,
        *,
        q_model: str | None,
        episode_id: str | None,
        earned: float | None = None,
        long_history: LongHistory | None = None,
        selection: ChoiceOptions | None = None,
    ) -> tuple[QModelLease, Scored]:
        """Score a step of an episode; returns the Q model as well."""
        episode_id = self._episode(episode_id)
        earned = earned if self.earned is None else self.earned
        episode = await self.begin_step(episode_id, earned=earned)
        learned = await self._learned(q_model, episode)
        with self._lease(q_model, episode_id, learned) as held:
            scored = await self.score(history, candidates, held, long_history=long_history, selection=selection)
        record_q_values(
            self.metrics.tracing,
            scored.result.q_values,
            chosen=scored.selection.chosen,
            q_model=held.id,
            episode_id=episode_id,
        )
        if episode_id is not None:
            offer = _offer(candidates, scored, held, asked=q_model or "", earned=earned)
            await self.episodes.end_step(
                episode_id, history, offer, candidates=candidates.messages, outcome=self.outcome
            )
        return held, scored

    def long_history(self, wanted: LongHistory | None) -> LongHistory:
        """The answer to a history that is too long: the request's wish before the server's."""
        return wanted or self.settings.long_history or "error"

    async def score(
        self,
        history: History,
        candidates: TriedCandidates,
        q_model: QModelLease,
        *,
        long_history: LongHistory | None = None,
        selection: ChoiceOptions | None = None,
    ) -> Scored:
        """Score each candidate; equal ones without observations are scored once.

        Args:
            long_history: "window" scores after a window of a history that is too long; None is an error, for endpoints
                whose callers cannot choose.
            selection: what the request says of the choice; None chooses by Q alone.
        """
        rule = _rule(candidates, selection, self.settings, q_model)
        unique, request = _to_score(history, candidates)
        domain = domain_of(q_model.model, selection.out_of_domain if selection else None, self.settings)
        least_read = least_read_of(selection, self.settings) if selection else 0.0
        distance = await distance_of(domain, history)
        choices = SCORE if long_history else Choices()
        asked = perf_counter()
        async with self.deadline.enforce(SCORING):
            result = await score_in_window(q_model, request, long_history or "error", choices)
        outside = distance.reason if distance and distance.outside else reason_unread(result.window, least_read)
        score_s = perf_counter() - asked
        self.metrics.candidates.observe(len(unique.messages))
        if result.window is not None:
            self.metrics.count_window(q_model.id, result.window)
        result = replace(
            result,
            q_values=unique.of_each(result.q_values),
            rules=unique.of_each(result.rules),
            verdicts=unique.of_each(result.verdicts),
            distance=distance.value if distance else None,
        )
        prior = candidates.prior(rule.prior, greedy_weight=rule.greedy_weight) if rule and candidates.drawn else None
        tau = rule.tau if rule and prior and rule.selection == "posterior" else None
        if outside:
            self.metrics.out_of_domain.labels(q_model.id).inc()
            chosen = Selection(prior.likeliest if prior else 0, "fallback")
        else:
            chosen = select(candidates.messages, result.q_values, prior=prior, tau=tau, rules=result.rules)
        return Scored(
            result=result,
            selection=chosen,
            score_ms=score_s * 1e3,
            prior=prior.shares if prior else None,
            tau=None if chosen.posterior is None else tau,
            unguided_reason=outside or None,
            out_of_domain=bool(outside) if domain or (result.window and least_read) else None,
        )


def _to_score(history: History, candidates: TriedCandidates) -> tuple[Distinct, ScoreRequest]:
    """The different candidates, and what is known of them."""
    unique = distinct(candidates.messages)
    if candidates.observations:  # each has its own
        unique = Distinct(candidates.messages, tuple(range(len(candidates.messages))))
    drawn = Counter(candidates.messages)
    request = ScoreRequest(
        history,
        unique.messages,
        observations=candidates.observations,
        counts=candidates.counts or tuple(drawn[message] for message in unique.messages),
        logprobs=candidates.logprobs,
        tools=candidates.tools,
    )
    return unique, request


def _rule(
    candidates: TriedCandidates, selection: ChoiceOptions | None, settings: Settings, q_model: QModelLease
) -> SelectionRule | None:
    if selection is None:
        return None
    rule = selection_rule(selection, settings, q_model.model)
    asked = selection.selection == "posterior" or selection.tau is not None
    if asked and rule.selection == "posterior" and not candidates.drawn:
        raise InvalidRequestError(
            "selection is posterior, but neither counts nor logprobs of the candidates are given; send one of them, or "
            "choose by argmax"
        )
    return rule


def _offer(
    candidates: TriedCandidates, scored: Scored, q_model: QModelLease, *, asked: str, earned: float | None
) -> Offer:
    texts = [candidate.text for candidate in candidates.messages]
    counts = Counter(texts)
    if candidates.counts:
        counts = +Counter(dict(zip(texts, candidates.counts, strict=True)))
    return Offer(
        q_values=dict(zip(texts, scored.result.q_values, strict=True)),
        chosen=texts[scored.selection.chosen],
        **q_model.model.recorded,
        counts=counts,
        verdicts=dict(zip(texts, scored.result.verdicts, strict=True)) if scored.result.verdicts else {},
        asked=asked,
        reason=scored.selection.reason,
        tau=scored.tau,
        duration_ms=scored.score_ms,
        window=scored.result.window,
        out_of_domain=scored.out_of_domain,
        shadow=q_model.shadow.id if q_model.shadow else "",
        earned=earned,
    )
