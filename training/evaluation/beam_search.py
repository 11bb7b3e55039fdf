"""Beam search by the value of what each step led to; a branch is a replayed episode.

The Q model sees the chat alone: neither a reward nor that an episode has ended reaches it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qguide.qnet.errors import HistoryTooLongError
from qguide.qnet.types import Candidate, History, Message, SampleRequest, ScoreResult
from qguide.training.evaluation.search import Searched, TaskTrials
from qguide.training.rollouts.episode import AgentStep, Episode, derived_seed
from qguide.training.rollouts.rollout import RolloutTask, SampleRequests, value_request
from qguide.training.trajectory import Step, reply_key, text_reply


@dataclass(frozen=True, slots=True)
class _Beam:
    """A trajectory so far, and the Q of its last action."""

    steps: tuple[Step, ...] = ()
    value: float = 0.0

    @property
    def ended(self) -> bool:
        return bool(self.steps) and self.steps[-1].ended


@dataclass(frozen=True, slots=True)
class _Branch:
    """A candidate after a beam."""

    beam: _Beam
    reply: Message
    value: float
    step: Step | None = None


class BeamSearch:
    """Beam search over one task's trajectories."""

    def __init__(self, shared: TaskTrials, seed: int) -> None:
        self._game = shared.playable.game(seed)
        self._options = shared.play
        self._observes, self._beams = shared.observes, shared.beams
        self._first_observation = ""
        self._choices: list[AgentStep] = []

    def search(self) -> RolloutTask[Searched]:
        """Extend the beams until the best of them has ended, or all have."""
        self._first_observation = yield from self._game.first()
        beams, too_long = [_Beam()], False
        while not beams[0].ended and any(self._is_open(beam) for beam in beams):
            try:
                branches = yield from self._branches([b for b in beams if self._is_open(b)])
            except HistoryTooLongError:
                too_long = True
                break
            kept = [beam for beam in beams if not self._is_open(beam)]
            beams = yield from self._best(kept, branches)
        best = beams[0].steps
        invalid = sum(not step.valid for step in best)
        episode = Episode(self._first_observation, best, tuple(self._choices), invalid, too_long, self._game.chat)
        return Searched([episode], chosen=0)

    def _is_open(self, beam: _Beam) -> bool:
        return not beam.ended and len(beam.steps) < self._options.max_steps

    def _branches(self, beams: Sequence[_Beam]) -> RolloutTask[list[_Branch]]:
        histories = [self._game.chat.history(self._first_observation, beam.steps) for beam in beams]
        requests = [self._draws(*numbered) for numbered in enumerate(histories)]
        several: list[list[Candidate]] = yield SampleRequests(tuple(requests))
        branches: list[_Branch] = []
        scored_tokens = 0
        for beam, history, drawn in zip(beams, histories, several, strict=True):
            replies = list({reply_key(c.message): c for c in reversed(drawn)}.values())
            found, tokens = yield from self._valued(beam, history, replies[::-1])
            branches += found
            scored_tokens += tokens
        self._choices.append(
            AgentStep(
                message=text_reply(""),
                completion_tokens=sum(c.completion_tokens for drawn in several for c in drawn),
                distinct_candidates=len(branches),
                scored_tokens=scored_tokens,
            )
        )
        return branches

    def _draws(self, number: int, history: History) -> SampleRequest:
        """The draws of one beam; the first beam's are those of the other methods."""
        step = sum(message.role == "assistant" for message in history)
        parts = (*self._game.seeds, step, *([number] if number else []))
        sampling = replace(self._options.drawing, seed=derived_seed(*parts))
        return SampleRequest(history, self._options.candidates, sampling)

    def _valued(
        self, beam: _Beam, history: History, candidates: Sequence[Candidate]
    ) -> RolloutTask[tuple[list[_Branch], int]]:
        """One branch for each candidate; tried first, if the Q model reads what came of it."""
        replies = [candidate.message for candidate in candidates]
        tried: list[Step] = [Step.of_messages(reply, ()) for reply in replies]
        if self._observes:
            tried = []
            for reply in replies:
                tried.append((yield from self._try(beam, reply)))
        result: ScoreResult = yield value_request(history, tried, observes=self._observes)
        branches = [
            _Branch(beam, reply, q, step if self._observes else None)
            for reply, q, step in zip(replies, result.q_values, tried, strict=True)
        ]
        return branches, result.computed_tokens

    def _try(self, beam: _Beam, reply: Message) -> RolloutTask[Step]:
        return self._game.try_reply(self._first_observation, beam.steps, reply)

    def _best(self, ended: list[_Beam], branches: list[_Branch]) -> RolloutTask[list[_Beam]]:
        """The beams to go on with, the best first; of equal ones the earlier."""
        found: list[_Beam | _Branch] = [*ended, *branches]
        ranked = sorted(found, key=lambda one: -one.value)
        beams: list[_Beam] = []
        for one in ranked[: self._beams]:
            if isinstance(one, _Beam):
                beams.append(one)
                continue
            step = one.step or (yield from self._try(one.beam, one.reply))
            beams.append(_Beam((*one.beam.steps, step), one.value))
        return beams
