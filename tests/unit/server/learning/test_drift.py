"""Rollbacks because the agent is not the one that was learned from."""

from qguide.server.episodes.learning_part import LearningArm, ShadowTally
from qguide.server.learning import phase_changes
from qguide.server.learning.lines import EpisodeLine, FitLine
from qguide.server.learning.progress import Progress
from qguide.server.settings.learning import Rules

SEEN = ShadowTally(version=1, decisions=20, room=20, disagreed=5)


def in_trial(prompts: list[str]) -> Progress:
    """A trial after episodes with these prompts."""
    progress = Progress(Rules())
    for prompt in prompts:
        progress.apply(EpisodeLine(outcome=1.0, arm=arm(prompt, guided=False, trial=0)))
    progress.apply(FitLine(version=1, episodes=len(prompts), licensed=True, reason="better"))
    progress.apply(EpisodeLine(outcome=1.0, arm=None, shadow=SEEN))
    change = phase_changes.due(progress)
    assert change is not None
    progress.apply(change)
    return progress


def arm(prompt: str = "", *, guided: bool, trial: int = 1) -> LearningArm:
    """A part in learning."""
    return LearningArm(trial=trial, guided=guided, share=0.5 if trial else 0.0, prompt=prompt)


def end(progress: Progress, prompt: str, *, guided: bool = True, outside: float = 0.0) -> str:
    """End an episode; returns the reason of the change that follows."""
    line = EpisodeLine(outcome=1.0, arm=arm(prompt, guided=guided), outside=outside)
    progress.apply(line)
    change = phase_changes.due(progress)
    if change is None or change.phase != "collecting":
        return ""
    progress.apply(change)
    return change.reason


def test_ten_episodes_with_a_new_prompt_roll_back_and_only_they_teach() -> None:
    progress = in_trial(["old"] * 30)
    reasons = [end(progress, "new", guided=number % 2 == 0) for number in range(10)]
    assert reasons[:9] == [""] * 9
    assert "the system prompt or the tools of the latest 10 episodes are new" in reasons[9]
    assert (progress.phase, progress.since, progress.learnable) == ("collecting", 31, 10)


def test_a_prompt_that_was_there_before_is_not_new() -> None:
    progress = in_trial(["old"] * 29 + ["other"])
    assert {end(progress, "other", guided=n % 2 == 0) for n in range(20)} == {""}


def test_prompts_that_always_differ_change_nothing() -> None:
    progress = in_trial([f"{number}" for number in range(30)])
    assert {end(progress, "today", guided=n % 2 == 0) for n in range(20)} == {""}


def test_states_outside_the_domain_roll_back() -> None:
    progress = in_trial(["old"] * 30)
    reasons = [end(progress, "old", outside=0.6) for _ in range(20)]
    assert reasons[:19] == [""] * 19
    assert "60% of the steps of the latest 20 guided episodes are outside" in reasons[19]
    assert progress.since == 31


def test_some_states_outside_do_not() -> None:
    progress = in_trial(["old"] * 30)
    assert {end(progress, "old", outside=0.2) for _ in range(40)} == {""}
