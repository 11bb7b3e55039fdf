"""Several trials of one task with verbal reflection in between (Reflexion; Shinn and others, 2023).

After a trial that failed, the policy is shown the trial and writes what it would do otherwise. The
next trial's prompt holds these notes. As in the paper the trials are greedy, and only the latest
notes are kept. Whether a trial failed is the environment's true verdict, which no server knows.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import Field

from qguide.qnet.errors import HistoryTooLongError
from qguide.qnet.types import Candidate, History, Message, SampleRequest
from qguide.training.evaluation.methods import greedy
from qguide.training.evaluation.search import Searched, TaskTrials
from qguide.training.options import JobOptions
from qguide.training.rollouts.episode import Agent, AgentStep, Episode, derived_seed
from qguide.training.rollouts.rollout import ModelRequest, RolloutTask

NOTES_HEADING: Final = "Notes from your earlier attempts at this task, which all failed:"
QUESTION: Final = (
    "The attempt above failed. In two or three sentences, say which decision was the mistake and "
    "what to do instead in the next attempt at the same task. Name the things and places "
    "concerned. Write only these sentences."
)


class Reflexion(JobOptions):
    """Options of the method `reflexion`.

    Attributes:
        trials: maximum number of trials; the first success ends them (ours; the paper plays 12 on
            ALFWorld).
        memory: number of notes that a prompt holds, the latest ones; 3 is the paper's.
        max_tokens: maximum number of tokens in one note.
    """

    trials: int = Field(default=3, ge=1)
    memory: int = Field(default=3, ge=1)
    max_tokens: int = Field(default=256, ge=1)


@dataclass(frozen=True, slots=True)
class Reflecting:
    """Trials of one task."""

    shared: TaskTrials
    seed: int

    def search(self) -> RolloutTask[Searched]:
        """Play until a trial succeeds; the last trial counts.

        A note that is empty, or that the trial leaves no room for, ends the trials as well: the
        next one would be the same again.
        """
        episodes: list[Episode] = []
        notes: list[str] = []
        tokens = 0
        while True:
            episode = yield from self.shared.episode(with_notes(greedy(self.shared.play), self._kept(notes)))
            episodes.append(episode)
            if self.shared.succeeds(episode) or len(episodes) == self.shared.reflexion.trials:
                break
            parts = (self.seed, self.shared.playable.task.id, "reflexion", len(episodes))
            note = yield from self._reflect(episode, self._kept(notes), derived_seed(*parts))
            if note is None:
                break
            tokens += note.completion_tokens
            if not (text := note.message.content.strip()):
                break
            notes.append(text)
        return Searched(episodes, len(episodes) - 1, reflections=tuple(notes), reflection_tokens=tokens)

    def _kept(self, notes: Sequence[str]) -> Sequence[str]:
        return notes[-self.shared.reflexion.memory :]

    def _reflect(self, episode: Episode, notes: Sequence[str], seed: int) -> RolloutTask[Candidate | None]:
        """The policy's note on a failed trial; None if the trial is too long to be shown."""
        asked = (Message("user", reflection_prompt(episode, notes)),)
        sampling = replace(self.shared.play.sampling, max_tokens=self.shared.reflexion.max_tokens, seed=seed)
        try:
            drawn: list[Candidate] = yield SampleRequest(asked, 1, sampling, role="reflect")
        except HistoryTooLongError:
            return None
        return drawn[0]


def with_notes(agent: Agent, notes: Sequence[str]) -> Agent:
    """An agent whose prompts hold notes, behind the first observation."""
    if not notes:
        return agent

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        return agent(noted(history, notes), step)

    return choose


def noted(history: History, notes: Sequence[str]) -> History:
    """A history with notes at the end of its first message that is not the system's."""
    first = next(i for i, message in enumerate(history) if message.role != "system")
    text = f"{history[first].content}\n\n{_listed(notes)}"
    return (*history[:first], replace(history[first], content=text), *history[first + 1 :])


def reflection_prompt(episode: Episode, notes: Sequence[str]) -> str:
    """The text that asks for a note: the trial, the notes that it was played with, the question."""
    parts = [episode.first_observation]
    if notes:
        parts.append(_listed(notes))
    parts += [f"You: {step.message.text}\nAnswer: {step.observation}" for step in episode.steps]
    return "\n\n".join((*parts, QUESTION))


def _listed(notes: Sequence[str]) -> str:
    return "\n".join((NOTES_HEADING, *(f"- {note}" for note in notes)))
