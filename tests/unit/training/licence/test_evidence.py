import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from qguide.qnet.models.manifest import Licence
from qguide.training.licence.credit import credit_of
from qguide.training.licence.evidence import FEWEST_TASKS, MOST_MISSING, HeldBackDecision, evidence_of
from qguide.training.licence.verdict import licence_of

EVEN = (math.log(0.5), math.log(0.5))


def decision(task: str, *, q_is_right: bool, log_prior: tuple[float, ...] = EVEN) -> HeldBackDecision:
    q_values = (0.9, 0.1) if q_is_right else (0.1, 0.9)
    return HeldBackDecision(task, q_values, log_prior, ((1.0,), (0.0,)))


def test_a_q_model_that_is_right_is_licensed_with_its_gain() -> None:
    licence = licence_of(evidence_of([decision(f"{n}", q_is_right=n % 8 > 0) for n in range(80)]))

    assert licence.granted
    assert licence.gain == pytest.approx(70 / 80 - 0.5)
    assert licence.choosers["draw"].outcome == pytest.approx(0.5)
    assert licence.choosers["q"].pair_accuracy == pytest.approx(70 / 80)
    assert licence.choosers["oracle"].outcome == 1.0


def test_a_gain_takes_three_errors_over_a_draw_and_two_over_the_agents_own_preferences() -> None:
    """Q is right in 66 of 100 decisions of two candidates that were drawn alike: 3.4 errors."""
    decisions = [decision(f"{n}", q_is_right=n < 66) for n in range(100)]
    above, below = licence_of(evidence_of(decisions)), licence_of(evidence_of(decisions[4:]))

    error = math.sqrt(0.66 * 0.34 / 99)
    assert above.own == "draw"
    assert above.gain_interval == pytest.approx((0.16 - 3 * error, 0.16 + 3 * error))
    assert above.granted
    assert "three standard errors" in above.reason
    assert not below.granted  # 2.96 errors

    told = [replace(decision(f"{n}", q_is_right=n < 70), greedy=n % 2 * (n < 90)) for n in range(100)]
    over_greedy = licence_of(evidence_of(told))
    assert over_greedy.own == "greedy"
    low, high = over_greedy.gain_interval
    assert over_greedy.gain - 3 * (high - low) / (2 * 1.96) < 0 < low
    assert over_greedy.granted


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_a_q_model_at_or_below_chance_is_not_licensed(share: float) -> None:
    chance = Random(0)
    decisions = [decision(f"{n}", q_is_right=chance.random() < share) for n in range(80)]

    licence = licence_of(evidence_of(decisions))

    assert not licence.granted
    assert "not shown to be above the agent's own" in licence.reason


@pytest.mark.parametrize("right", [True, False])
def test_a_handful_of_decisions_says_how_many_a_licence_takes_and_promises_none(right: bool) -> None:
    licence = licence_of(evidence_of([decision(f"{n}", q_is_right=right) for n in range(5)]))

    assert not licence.granted
    assert licence.reason.endswith(
        "over 5 held-back decisions of 5 tasks, and a licence by decisions takes 10 decisions of 10 tasks"
    )


def test_chance_is_licensed_in_few_of_many_trainings() -> None:
    granted = 0
    for seed in range(100):
        chance = Random(seed)
        decisions = [decision(f"{n}", q_is_right=chance.random() < 0.5) for n in range(40)]
        granted += licence_of(evidence_of(decisions)).granted

    assert granted <= 1


def test_what_the_votes_know_already_is_no_gain() -> None:
    known = (math.log(0.8), math.log(0.2))
    decisions = [decision(f"{n}", q_is_right=True, log_prior=known) for n in range(40)]

    evidence = evidence_of(decisions)

    assert evidence.choosers["votes"].outcome == 1.0
    assert evidence.gain == 0.0
    assert not evidence.licensed


def test_too_few_decisions_say_how_many_are_missing() -> None:
    licence = licence_of(evidence_of([decision(f"{n}", q_is_right=True) for n in range(4)]))

    assert not licence.granted
    assert licence.missing_decisions == 6


def test_a_gain_that_no_sensible_number_of_decisions_would_show_promises_none() -> None:
    def judged(right: int) -> Licence:
        return licence_of(evidence_of([decision(f"{n}", q_is_right=n < right) for n in range(400)]))

    some, hardly, none = judged(207), judged(202), judged(200)

    assert some.missing_decisions is not None
    assert some.missing_decisions <= MOST_MISSING
    assert f"{some.missing_decisions:,} more decisions" in some.reason
    assert hardly.gain > 0
    assert hardly.missing_decisions is None
    assert hardly.reason.endswith(f"{MOST_MISSING:,} more decisions would not show it")
    assert none.gain == 0
    assert none.reason.endswith("of 400 tasks")


def test_an_interval_that_begins_at_0_is_short_of_one_decision() -> None:
    shown = evidence_of([decision(f"{n}", q_is_right=n < 300) for n in range(400)])
    assert replace(shown, gain=0.25, gain_interval=(0.0, 0.5)).missing_decisions == 1


def test_decisions_without_a_difference_inform_about_nothing() -> None:
    alike = HeldBackDecision("a", (0.9, 0.1), EVEN, ((1.0,), (1.0,)))

    evidence = evidence_of([alike])

    assert evidence.decisions == 0
    assert not licence_of(evidence).granted


def test_a_task_of_many_decisions_counts_once() -> None:
    many = [decision("often", q_is_right=False) for _ in range(100)]
    few = [decision(f"{n}", q_is_right=True) for n in range(9)]

    evidence = evidence_of([*many, *few])

    assert evidence.choosers["q"].outcome == pytest.approx(0.9)


def test_the_noise_ceiling_is_what_a_model_that_knows_all_would_order_as_the_outcomes_do() -> None:
    sure = HeldBackDecision("a", (1.0, 0.0), EVEN, ((1.0, 1.0), (0.0, 0.0)))
    luck = HeldBackDecision("b", (1.0, 0.0), EVEN, ((1.0, 0.0, 1.0), (0.0, 1.0)))
    tied = HeldBackDecision("c", (1.0, 0.0), EVEN, ((1.0, 1.0), (1.0, 1.0)))

    assert evidence_of([sure] * 30 + [tied] * 30).ceiling == 1.0
    assert evidence_of([sure] * 15 + [luck] * 15).ceiling == pytest.approx(0.5)
    assert evidence_of([sure] * 29).ceiling is None, "too few pairs"


@pytest.mark.parametrize("draws", [2, 8])
def test_the_noise_ceiling_is_that_of_draws_with_a_known_chance(draws: int) -> None:
    """Coins of .7 and .3: the mean of the draws is the order of the truth in most pairs."""
    rng = np.random.default_rng(0)
    drawn = [tuple(tuple(map(float, rng.random(draws) < chance)) for chance in (0.7, 0.3)) for _ in range(4_000)]
    means = np.array([[np.mean(own) for own in pair] for pair in drawn])
    differ = means[:, 0] != means[:, 1]

    ceiling = evidence_of(
        [HeldBackDecision(f"{n % 20}", (1.0, 0.0), EVEN, pair) for n, pair in enumerate(drawn)]
    ).ceiling

    assert ceiling == pytest.approx((means[differ, 0] > means[differ, 1]).mean(), abs=0.05)


def test_credit_is_the_correlation_of_advantage_and_surprise() -> None:
    advantages = np.array([1.0, -1.0, 1.0, -1.0] * 20)
    tasks = [f"{n}" for n in range(40) for _ in range(2)]

    assert credit_of(advantages, advantages, tasks, episodes=80).correlation == pytest.approx(1.0)
    assert credit_of(advantages, -advantages, tasks, episodes=80).interval[1] < 0


def test_credit_by_chance_grants_nothing() -> None:
    granted = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        tasks = [f"{n}" for n in range(40) for _ in range(5)]
        luck = np.repeat(rng.normal(size=40), 5)
        credit = credit_of(rng.normal(size=200), luck, tasks, episodes=40)
        granted += licence_of(evidence_of([]), credit).granted

    assert granted <= 2


def test_few_episodes_are_no_proof_however_alike_they_are() -> None:
    advantages = np.array([1.0, -1.0] * 39)
    episodes = [f"{n}" for n in range(39) for _ in range(2)]

    few = credit_of(advantages, advantages, episodes, episodes=39)
    enough = credit_of(advantages, advantages, episodes, episodes=40)

    assert few.interval[0] > 0
    assert not few.licensed
    for held_back, takes in (("tasks", "20 tasks and 40 episodes"), ("episodes", "40 episodes")):
        reason = licence_of(evidence_of([]), few, held_back=held_back).reason
        assert "the actions that it prefers earned more than was expected" in reason
        assert reason.endswith(f", and a licence by credit takes {takes}: record 1 more episode")
    tasks = credit_of(advantages, advantages, ["a"] * 78, episodes=39)
    assert licence_of(evidence_of([]), tasks).reason.endswith(": record 19 more tasks and 1 more episode")
    assert enough.licensed
    reason = licence_of(evidence_of([]), enough).reason
    assert reason.startswith("the actions that it prefers earned more")  # which grants it
    assert "by three standard errors" in reason


def test_the_error_of_credit_is_that_of_a_bootstrap_by_unit() -> None:
    rng = np.random.default_rng(0)
    tasks = np.repeat(np.arange(60), 4)
    advantages, surprises = rng.normal(size=240), np.repeat(rng.normal(size=60), 4)
    surprises += 0.3 * advantages
    of_unit = np.stack([advantages * surprises, advantages**2, surprises**2]).reshape(3, 60, 4).sum(axis=2)

    credit = credit_of(advantages, surprises, [str(task) for task in tasks], episodes=60)

    together, own, other = of_unit[:, rng.integers(0, 60, (2_000, 60))].sum(axis=2)
    low, high = credit.interval
    assert (high - low) / 6 == pytest.approx(np.std(together / np.sqrt(own * other)), rel=0.1)


def test_nothing_known_has_no_credit() -> None:
    credit = credit_of(np.zeros(4), np.ones(4), ["a", "a", "b", "b"], episodes=2)

    assert credit.correlation == 0.0
    assert not licence_of(evidence_of([]), credit).granted


def test_what_greedy_play_knows_already_is_no_gain() -> None:
    told = [replace(decision(f"{n}", q_is_right=True), greedy=0) for n in range(40)]

    licence = licence_of(evidence_of(told))

    assert licence.choosers["greedy"].outcome == 1.0
    assert (licence.own, licence.gain) == ("greedy", 0.0)
    assert not licence.granted
    assert "the agent's own, its greedy reply" in licence.reason


def test_q_is_compared_with_greedy_play_where_it_is_known() -> None:
    right = [replace(decision(f"{n}", q_is_right=True), greedy=1) for n in range(12)]
    untold = [decision(f"u{n}", q_is_right=n % 4 > 0) for n in range(12)]

    licence = licence_of(evidence_of([*right, *untold]))

    assert licence.choosers["greedy"].decisions == 12
    assert licence.choosers["q"].decisions is None
    assert licence.own == "draw"


def test_too_few_greedy_replies_are_unknown() -> None:
    told = [replace(decision(f"{n}", q_is_right=True), greedy=0) for n in range(9)]
    untold = [decision(f"u{n}", q_is_right=True) for n in range(31)]

    licence = licence_of(evidence_of([*told, *untold]))

    assert "greedy" not in licence.choosers
    assert licence.granted


def test_credit_must_be_above_that_of_the_agents_own_preference() -> None:
    tasks = [f"{n}" for n in range(40) for _ in range(4)]
    surprise = np.array([1.0, -1.0] * 80)
    noisy = surprise + np.random.default_rng(0).normal(size=160)

    alike = credit_of(noisy, surprise, tasks, {"votes": surprise, "greedy": np.full(160, np.nan)}, episodes=40)
    above = credit_of(surprise, surprise, tasks, {"votes": noisy}, episodes=40)

    assert set(alike.leads) == {"votes"}
    assert not alike.licensed
    assert "than those that the vote prefers" in licence_of(evidence_of([]), alike).reason
    assert above.licensed
    assert above.leads["votes"].difference == pytest.approx(
        above.correlation - credit_of(noisy, surprise, tasks, episodes=40).correlation
    )


def test_the_posterior_is_judged_with_the_weight_of_the_greedy_reply() -> None:
    told = [replace(decision(f"{n}", q_is_right=False), greedy=0) for n in range(40)]

    assert evidence_of(told, tau=0.1).choosers["posterior"].outcome == 0.0
    weighed = evidence_of([replace(one, tau=0.1, greedy_weight=20.0) for one in told])
    assert weighed.choosers["posterior"].outcome == 1.0
    assert weighed.choosers["votes"].outcome == pytest.approx(0.5)


def test_votes_and_the_greedy_reply_together_are_the_agents_own_choice() -> None:
    """A Q model of noise beats each of them alone by a posterior that weighs both."""
    chance = Random(3)
    decisions = []
    for number in range(200):
        votes, greedy = [chance.gauss(0, 1) for _ in range(3)], chance.randrange(3)
        outcomes = [(vote + 1.5 * (i == greedy),) for i, vote in enumerate(votes)]
        noise = [chance.gauss(0, 0.01) for _ in range(3)]
        own = HeldBackDecision(f"{number}", noise, votes, outcomes, greedy)
        decisions.append(replace(own, tau=100.0, greedy_weight=1.5))

    evidence = evidence_of(decisions)

    figures = {name: one.outcome for name, one in evidence.choosers.items()}
    assert figures["posterior"] > max(figures["votes"], figures["greedy"])
    assert evidence.own == "prior"
    assert not evidence.licensed
    known, others = decisions[: FEWEST_TASKS - 1], decisions[FEWEST_TASKS - 1 :]
    few = [*known, *(replace(one, greedy=None) for one in others)]
    assert not {"greedy", "prior"} & set(evidence_of(few).choosers)
