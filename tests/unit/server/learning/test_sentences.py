"""The state of learning as it is told."""

import re

from qguide.server.episodes.learning_part import LearningArm
from qguide.server.learning import phase_changes
from qguide.server.learning.lines import EpisodeLine, FitLine
from qguide.server.learning.progress import Progress
from qguide.server.learning.status_body import LearningState, state_of
from qguide.server.settings.learning import Rules

RULES = Rules(every=2)


def told(progress: Progress) -> LearningState:
    """The state of a server without keys."""
    return state_of("_", progress)


def play(progress: Progress, outcome: float, *, guided: bool = False) -> None:
    """One episode of the present phase."""
    share = progress.share
    arm = LearningArm(trial=progress.trial, guided=guided, share=share)
    progress.apply(EpisodeLine(outcome=outcome, arm=arm))


def test_a_fit_that_is_due_is_not_in_0_more() -> None:
    progress = Progress(RULES)
    assert "the first fit in 2 more" in told(progress).sentence
    play(progress, 1.0)
    play(progress, 0.0)
    assert "the first fit runs, or is about to" in told(progress).sentence
    progress.apply(FitLine(version=1, episodes=0, licensed=False, reason="not above"))
    assert "the next fit runs, or is about to" in told(progress).sentence


def test_episodes_that_were_not_recorded_teach_nothing() -> None:
    progress = Progress(RULES)
    for _ in range(2):
        progress.apply(EpisodeLine(outcome=1.0, arm=None, recorded=False))
    assert "no episode was recorded" in told(progress).sentence


def test_an_agent_that_names_no_episode_is_told() -> None:
    progress = Progress(RULES)
    sentence = state_of("_", progress, nameless=7).sentence
    assert sentence.startswith("no episode has ended yet")
    assert "of this process's steps 7 named no episode" in sentence
    play(progress, 1.0)
    assert "named no" not in state_of("_", progress, nameless=7).sentence


def test_the_sentence_tells_why_an_episode_was_not_recorded() -> None:
    progress = Progress(RULES)
    play(progress, 1.0)
    assert "not recorded" not in state_of("_", progress).sentence
    assert state_of("_", progress, unrecorded="it begins with a reply").sentence.endswith(
        "not recorded: it begins with a reply"
    )


def test_rewards_on_another_scale_are_told() -> None:
    progress = Progress(RULES)
    play(progress, 1.0)
    assert "scale them" not in told(progress).sentence
    line = EpisodeLine(outcome=1.0, arm=None, cut=True)
    progress.apply(EpisodeLine.model_validate_json(line.model_dump_json()))
    assert "1 of the rewards lay outside 0 to 1" in told(progress).sentence


def test_a_fit_without_a_licence_says_what_is_missing() -> None:
    progress = Progress(RULES)
    line = FitLine(version=1, episodes=0, licensed=False, reason="not above", missing="no room: x")
    progress.apply(FitLine.model_validate_json(line.model_dump_json()))
    assert "not above; no room: x; the next fit in 2 more" in told(progress).sentence
    found = told(progress).fit
    assert found is not None
    assert found.missing == "no room: x"


def test_a_trial_tells_the_difference_of_its_means_and_what_it_needs() -> None:
    progress = Progress(RULES)
    progress.apply(FitLine(version=1, episodes=0, licensed=True, reason="better"))
    progress.apply(phase_changes.begun(progress, 1, "better"))
    assert "at most 300 more" in told(progress).sentence
    for number in range(8):
        guided = number % 2 == 0
        play(progress, float(guided or number % 4 == 1), guided=guided)
    state = told(progress)
    assert state.difference.estimate == state.guided.mean - state.unguided.mean == 0.5
    [about] = re.findall(r"about (\d+) more", state.sentence)
    assert 5 < int(about) < 150
