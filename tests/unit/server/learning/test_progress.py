"""Phases of learning, as they follow from episodes and fits."""

import pytest

from benchmarks.learning.simulation import simulate
from qguide.server.episodes.learning_part import LearningArm, ShadowTally
from qguide.server.learning import phase_changes
from qguide.server.learning.lines import EpisodeLine, FitLine
from qguide.server.learning.progress import Progress
from qguide.server.settings.learning import Rules


def test_outcomes_at_random_almost_never_guide() -> None:
    runs = [simulate(lambda n, g: 0.5, episodes=600, seed=seed) for seed in range(20)]
    assert sum(run.first("guiding") is not None for run in runs) <= 3


def test_a_helpful_model_guides_and_stays() -> None:
    for seed in range(5):
        run = simulate(lambda n, g: 0.9 if g else 0.4, episodes=400, seed=seed)
        assert run.first("guiding") is not None
        assert run.first("collecting") is None


def test_a_model_that_becomes_harmful_is_rolled_back_and_only_newer_episodes_teach() -> None:
    def success(number: int, guided: bool) -> float:
        return (0.9 if number < 300 else 0.1) if guided else 0.4

    run = simulate(success, episodes=460, seed=1)
    began = run.first("guiding")
    back = run.first("collecting")
    assert began is not None
    assert began < 300
    assert back is not None
    assert 300 < back < 400


def test_an_agent_that_gets_better_alone_is_no_longer_guided() -> None:
    def success(number: int, guided: bool) -> float:
        return 0.5 if guided else 0.1 if number < 300 else 0.9

    run = simulate(success, episodes=650, seed=3)
    back = run.first("collecting")
    assert back is not None
    assert 300 < back < 650


def test_a_harmful_trial_ends() -> None:
    run = simulate(lambda n, g: 0.1 if g else 0.6, episodes=200, seed=2)
    assert run.first("guiding") is None
    assert run.first("collecting") is not None


def fitted(progress: Progress, version: int, *, disagreed: int = 5, **seen: int) -> str:
    """A licensed fit and its shadow; returns the event that follows."""
    episodes = progress.episodes.count
    progress.apply(FitLine(version=version, episodes=episodes, licensed=True, reason="better"))
    assert phase_changes.due(progress) is None
    tally = {"decisions": 20, "room": 20, "disagreed": disagreed} | seen
    shadow = ShadowTally(version=version, **tally)
    progress.apply(EpisodeLine(episode=f"s{version}", outcome=1.0, arm=None, shadow=shadow))
    return decided(progress)


def decided(progress: Progress) -> str:
    """Apply the change that is due; returns its event."""
    change = phase_changes.due(progress)
    if change is None:
        return ""
    progress.apply(change)
    return change.event


def guiding() -> Progress:
    """Version 1 guides."""
    progress = Progress(Rules())
    assert fitted(progress, 1) == "trial_begun"
    progress.apply(phase_changes.promoted(progress, 1, "by hand"))
    return progress


def duel(progress: Progress, *, newer: float, present: float, most: int = 400) -> tuple[str, str]:
    """Guided episodes of both versions until the challenge ends; returns event and reason."""
    for number in range(most):
        is_newer = number % 2 == 0
        arm = LearningArm(trial=1, guided=True, share=0.9, challenge=progress.challenges, challenger=is_newer)
        hits = newer if is_newer else present
        outcome = float((number // 2 % 10) < 10 * hits)
        progress.apply(EpisodeLine(outcome=outcome, arm=arm))
        if change := phase_changes.due(progress):
            progress.apply(change)
            return change.event, change.reason
    return "", ""


def test_nothing_is_tried_without_a_licence() -> None:
    progress = Progress(Rules(every=2))
    for name in "ab":
        arm = LearningArm(trial=0, guided=False, share=0.0)
        progress.apply(EpisodeLine(episode=name, outcome=1.0, arm=arm, recorded=True))
    assert progress.fit_due
    progress.apply(FitLine(version=1, episodes=2, licensed=False, reason="not better"))
    assert phase_changes.due(progress) is None
    assert not progress.fit_due
    assert fitted(progress, 2) == "trial_begun"
    assert (progress.share, progress.version) == (0.5, 2)


def test_the_reason_of_guidance_counts_the_episodes_of_the_trial_alone() -> None:
    progress = Progress(Rules())
    alone = LearningArm(trial=0, guided=False, share=0.0)
    for number in range(50):
        progress.apply(EpisodeLine(episode=f"before{number}", outcome=1.0, arm=alone, recorded=True))
    assert fitted(progress, 1) == "trial_begun"
    event, number = "", 0
    while not event:
        arm = LearningArm(trial=1, guided=number % 2 == 0, share=0.5)
        outcome = float(arm.guided)
        progress.apply(EpisodeLine(episode=f"trial{number}", outcome=outcome, arm=arm, recorded=True))
        event, number = decided(progress), number + 1
    assert event == "guiding"
    assert progress.reason == f"guidance helps: guided 100% of {(number + 1) // 2}, unguided 0% of {number // 2}"


def test_a_version_is_in_the_shadow_of_twenty_decisions_before_its_trial() -> None:
    progress = Progress(Rules())
    progress.apply(FitLine(version=1, episodes=0, licensed=True, reason="better"))
    part = ShadowTally(version=1, decisions=19, room=19, disagreed=2)
    progress.apply(EpisodeLine(episode="a", outcome=1.0, arm=None, shadow=part))
    assert phase_changes.due(progress) is None
    one = ShadowTally(version=1, decisions=1, room=1)
    progress.apply(EpisodeLine(episode="b", outcome=1.0, arm=None, shadow=one))
    assert decided(progress) == "trial_begun"
    assert "20 decisions candidates differed in 20, it chose otherwise in 2" in progress.reason


def test_decisions_in_the_shadow_of_another_version_do_not_count() -> None:
    progress = Progress(Rules())
    progress.apply(FitLine(version=2, episodes=0, licensed=True, reason="better"))
    other = ShadowTally(version=1, decisions=20, room=20, disagreed=2)
    progress.apply(EpisodeLine(episode="a", outcome=1.0, arm=None, shadow=other))
    assert phase_changes.due(progress) is None


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        ({"disagreed": 0}, "it would have changed nothing"),
        ({"disagreed": 0, "room": 0}, "all candidates were equal"),
        ({"outside": 11}, "11 of 20 decisions are outside"),
    ],
)
def test_a_version_whose_shadow_speaks_against_it_is_passed_over_once(seen: dict[str, int], why: str) -> None:
    progress = Progress(Rules())
    assert fitted(progress, 1, **seen) == "passed_over"
    assert why in progress.note
    assert (progress.phase, progress.candidate, phase_changes.due(progress)) == ("collecting", None, None)
    assert fitted(progress, 2) == "trial_begun"


def test_a_fit_waits_for_the_shadow_of_the_one_before_but_not_for_ever() -> None:
    progress = Progress(Rules(every=2))
    progress.apply(FitLine(version=1, episodes=0, licensed=True, reason="better"))
    due = []
    for number in range(60):
        arm = LearningArm(trial=0, guided=False, share=0.0)
        progress.apply(EpisodeLine(episode=str(number), outcome=1.0, arm=arm))
        due.append(progress.fit_due)
    assert due.index(True) == 49


def test_a_newer_version_guides_only_once_it_is_shown_to_be_better() -> None:
    progress = guiding()
    assert fitted(progress, 2) == "challenge_begun"
    assert (progress.version, progress.challenger_share, progress.share) == (1, 0.45, 0.9)
    event, reason = duel(progress, newer=0.9, present=0.4)
    assert event == "challenge_decided"
    assert "version 2 replaces version 1: 9" in reason
    assert (progress.version, progress.challenge, progress.challenger_share) == (2, None, 0.0)


def test_a_newer_version_that_is_worse_is_not_tried_again() -> None:
    progress = guiding()
    fitted(progress, 2)
    event, reason = duel(progress, newer=0.2, present=0.9)
    assert event == "challenge_decided"
    assert "version 2 is worse than version 1, which stays" in reason
    assert (progress.phase, progress.version, progress.candidate) == ("guiding", 1, None)
    assert fitted(progress, 3) == "challenge_begun"
    assert progress.challenges == 2


@pytest.mark.parametrize(
    ("newer", "version", "said"),
    [(0.6, 2, "version 2 replaces version 1"), (0.4, 1, "not better than version 1, which stays")],
)
def test_a_challenge_without_a_proof_goes_to_the_better_mean(newer: float, version: int, said: str) -> None:
    progress = guiding()
    fitted(progress, 2)
    event, reason = duel(progress, newer=newer, present=0.5)
    assert event == "challenge_decided"
    assert said in reason
    assert progress.version == version


def test_a_challenge_follows_the_newest_version() -> None:
    progress = guiding()
    fitted(progress, 2)
    assert fitted(progress, 3) == "newer_version"
    assert progress.challenge is not None
    assert (progress.challenge.version, progress.challenges) == (3, 1)


def test_a_bad_challenger_does_not_roll_back_what_guides() -> None:
    progress = guiding()
    for _ in range(30):
        progress.apply(EpisodeLine(outcome=1.0, arm=LearningArm(trial=1, guided=True, share=0.9)))
    fitted(progress, 2)
    assert duel(progress, newer=0.0, present=1.0)[0] == "challenge_decided"
    assert progress.phase == "guiding"
    assert progress.latest.guided.mean == 1.0


@pytest.mark.parametrize(("lost", "event", "trial"), [(4, "newer_version", 1), (40, "trial_begun", 2)])
def test_a_newer_version_has_a_trial_of_its_own_where_the_one_before_lost_much(
    lost: int, event: str, trial: int
) -> None:
    progress = Progress(Rules())
    fitted(progress, 1)
    for number in range(lost):
        arm = LearningArm(trial=1, guided=number % 2 == 0, share=0.5)
        progress.apply(EpisodeLine(outcome=float(number // 2 % 2), arm=arm))
    assert fitted(progress, 2) == event
    assert (progress.phase, progress.trial, progress.version) == ("trial", trial, 2)


def test_a_fit_that_may_not_be_tried_ends_no_trial_of_an_older_version() -> None:
    progress = Progress(Rules())
    fitted(progress, 1)
    progress.apply(FitLine(version=2, episodes=25, licensed=False, reason="by chance"))
    assert phase_changes.due(progress) is None, "outcomes tell of a version, not the next one's fit"
    assert (progress.phase, progress.version, progress.served) == ("trial", 1, {1})


def test_trials_that_follow_one_another_end_together() -> None:
    progress = Progress(Rules(most_in_trial=30))
    fitted(progress, 1)
    episodes = 0
    while progress.phase == "trial":
        arm = LearningArm(trial=progress.trial, guided=episodes % 2 == 0, share=0.5)
        progress.apply(EpisodeLine(outcome=float(episodes // 2 % 2), arm=arm))
        episodes += 1
        if decided(progress) != "trial_ended" and episodes % 25 == 0:
            fitted(progress, 1 + episodes // 25)
    assert progress.trial == 3
    assert episodes == 2 * 30


def test_an_episode_of_an_earlier_trial_is_not_compared() -> None:
    progress = Progress(Rules())
    fitted(progress, 1)
    progress.apply(EpisodeLine(outcome=1.0, arm=LearningArm(trial=0, guided=True, share=0.5)))
    assert progress.latest.both.count == 0
    progress.apply(EpisodeLine(outcome=1.0, arm=LearningArm(trial=1, guided=True, share=0.5)))
    assert progress.latest.both.count == 1
