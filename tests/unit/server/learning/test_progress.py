"""Phases of learning, as they follow from episodes and fits."""

from benchmarks.learning.simulation import simulate
from qguide.server.episodes.state import Arm
from qguide.server.learning.lines import EpisodeLine, FitLine
from qguide.server.learning.progress import Progress
from qguide.server.learning.rules import Rules


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


def test_a_harmful_trial_ends() -> None:
    run = simulate(lambda n, g: 0.1 if g else 0.6, episodes=200, seed=2)
    assert run.first("guiding") is None
    assert run.first("collecting") is not None


def test_nothing_is_tried_without_a_licence() -> None:
    progress = Progress(Rules(every=2))
    for _ in range(2):
        progress.apply(
            EpisodeLine(outcome=1.0, arm=Arm(trial=0, guided=False, share=0.0), recorded=True)
        )
    assert progress.fit_due
    progress.apply(FitLine(version=1, episodes=2, licensed=False, reason="not better"))
    assert progress.due() is None
    assert not progress.fit_due
    progress.apply(FitLine(version=2, episodes=2, licensed=True, reason="better"))
    change = progress.due()
    assert change is not None
    assert change.phase == "trial"
    progress.apply(change.line(at=1.0))
    assert progress.share == 0.5


def test_an_episode_of_an_earlier_trial_is_not_compared() -> None:
    progress = Progress(Rules())
    progress.apply(FitLine(version=1, episodes=0, licensed=True, reason="better"))
    change = progress.due()
    assert change is not None
    progress.apply(change.line(at=1.0))
    progress.apply(EpisodeLine(outcome=1.0, arm=Arm(trial=0, guided=True, share=0.5)))
    assert progress.in_trial.count == 0
    progress.apply(EpisodeLine(outcome=1.0, arm=Arm(trial=1, guided=True, share=0.5)))
    assert progress.in_trial.count == 1
