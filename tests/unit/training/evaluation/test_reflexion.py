"""Trials with notes in between: what is asked, what the next trial sees, and when it ends."""

from collections.abc import Sequence

import pytest

from qguide.qnet.errors import HistoryTooLongError
from qguide.qnet.types import Candidate, Message, SampleRequest, Sampling
from qguide.training.environment import EnvironmentBundle, NumberedConfig, StepResult, Task
from qguide.training.evaluation.methods import Play
from qguide.training.evaluation.reflexion import (
    NOTES_HEADING,
    QUESTION,
    Reflecting,
    Reflexion,
    noted,
    reflection_prompt,
)
from qguide.training.evaluation.search import Searched, TaskTrials
from qguide.training.rollouts.driver import run_together
from qguide.training.rollouts.harness import PlayableTask
from qguide.training.trajectory import ChatFormat

CHAT = ChatFormat(system="Be brief.", examples=(Message("user", "An example."),))
PLAY = Play(sampling=Sampling(temperature=0.7, max_tokens=9), max_steps=4)


class Doors:
    """Two actions; only the second door behind the first one wins."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def reset(self) -> str:
        return "Three doors. Find the treasure."

    def step(self, action: str) -> StepResult:
        self.opened.append(action)
        if len(self.opened) == 1:
            return StepResult(f"Behind door {action}: more doors.", 0.0, False)
        won = self.opened == ["1", "2"]
        return StepResult("Treasure!" if won else "A wall.", float(won), True)

    def close(self) -> None:
        """Nothing to let go of."""


class Learner:
    """Opens door 1 twice, or the doors that the last note in its prompt names."""

    name = "learner"

    def __init__(self, *notes: str, longest_prompt: int = 10_000) -> None:
        self.notes = list(notes)
        self.longest_prompt = longest_prompt
        self.asked: list[SampleRequest] = []

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        return [[self._draw(request)] for request in requests]

    def _draw(self, request: SampleRequest) -> Candidate:
        self.asked.append(request)
        if request.role == "reflect":
            if len(request.history[0].content) > self.longest_prompt:
                raise HistoryTooLongError("too long")
            return Candidate(Message("assistant", self.notes.pop(0)), 5)
        first = next(message for message in request.history if message.role == "user")
        _, _, notes = first.content.partition(NOTES_HEADING)
        doors = notes.split("doors ")[-1].split(",") if notes else ["1", "1"]
        turn = sum(message.role == "assistant" for message in request.history)
        return Candidate(Message("assistant", f"Action: {doors[turn]}"), 2)


def reflect(policy: Learner, **options: int) -> Searched:
    doors = EnvironmentBundle(
        name="doors",
        config=NumberedConfig,
        build_suite=lambda config: pytest.fail("the test has its own task"),
        chat=CHAT,
        is_success=lambda reward, terminated: reward >= 1,
    )
    shared = TaskTrials(
        playable=PlayableTask(Task("doors", "door", "0"), Doors, doors),
        play=PLAY,
        budgets={},
        budget_of=None,
        trajectories=1,
        guided_trajectories=1,
        observes=False,
        stop_at=None,
        beams=1,
        lats_iterations=1,
        reflexion=Reflexion.model_validate(options),
        paraphrases=(),
        on_row=lambda row: None,
        on_failure=lambda failure: None,
    )
    [searched] = run_together([Reflecting(shared, 3).search()], policy=policy)
    return searched


def test_a_note_wins_the_next_trial() -> None:
    policy = Learner(" The mistake was the second door. Try doors 1,2 \n")
    searched = reflect(policy)
    assert [episode.reward for episode in searched.episodes] == [0.0, 1.0]
    assert searched.chosen == 1
    assert searched.reflections == ("The mistake was the second door. Try doors 1,2",)
    assert searched.reflection_tokens == 5
    assert [request.role for request in policy.asked] == ["act", "act", "reflect", "act", "act"]


def test_the_question_shows_the_trial_and_is_not_asked_greedily() -> None:
    policy = Learner("doors 1,2")
    reflect(policy)
    [request] = [request for request in policy.asked if request.role == "reflect"]
    [message] = request.history
    assert message.content == (
        "Three doors. Find the treasure.\n\n"
        "You: Action: 1\nAnswer: Behind door 1: more doors.\n\n"
        "You: Action: 1\nAnswer: A wall.\n\n"
        f"{QUESTION}"
    )
    assert (request.sampling.temperature, request.sampling.max_tokens) == (0.7, 256)
    assert request.sampling.seed is not None
    assert {r.sampling.temperature for r in policy.asked if r.role == "act"} == {0.0}


def test_a_prompt_holds_the_latest_notes_alone() -> None:
    policy = Learner("doors 3,1", "doors 3,2", "doors 3,3")
    searched = reflect(policy, trials=4, memory=2)
    assert len(searched.episodes) == 4
    assert searched.chosen == 3
    last = policy.asked[-1].history
    assert last[0] == Message("system", "Be brief.")
    assert last[1].content == (f"Three doors. Find the treasure.\n\n{NOTES_HEADING}\n- doors 3,2\n- doors 3,3")
    # The last question shows the notes with which the third trial was played.
    asked = [request for request in policy.asked if request.role == "reflect"][-1]
    assert f"{NOTES_HEADING}\n- doors 3,1\n- doors 3,2" in asked.history[0].content


@pytest.mark.parametrize(("trials", "notes"), [(1, ()), (3, ("",)), (3, ("  \n",))])
def test_trials_end_at_their_number_or_without_a_note(trials: int, notes: tuple[str, ...]) -> None:
    searched = reflect(Learner(*notes), trials=trials)
    assert len(searched.episodes) == 1
    assert searched.reflections == ()
    assert searched.reflection_tokens == 5 * len(notes)


def test_a_trial_that_is_too_long_to_be_shown_is_the_last() -> None:
    searched = reflect(Learner(longest_prompt=10))
    assert len(searched.episodes) == 1
    assert searched.reflection_tokens == 0


def test_notes_stand_in_the_first_message_that_is_not_the_systems() -> None:
    history = (Message("user", "task"), Message("assistant", "a"), Message("user", "seen"))
    first, *rest = noted(history, ["left"])
    assert first.content == f"task\n\n{NOTES_HEADING}\n- left"
    assert tuple(rest) == history[1:]


def test_a_question_without_notes_names_none() -> None:
    policy = Learner("doors 1,2")
    episode = reflect(policy).episodes[0]
    assert NOTES_HEADING not in reflection_prompt(episode, ())
