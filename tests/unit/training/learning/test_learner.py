from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest

from qguide.qnet.features.hashing import Hasher
from qguide.qnet.types import History, Message
from qguide.training.learning.advantage import PENALTIES, Options, fit, steps_of, trace_returns
from qguide.training.learning.episodes import HeldBack, LearnedEpisode, folds_of
from qguide.training.learning.learner import Learned, judged_by, learn
from qguide.training.licence.evidence import evidence_of
from qguide.training.licence.verdict import licence_of
from qguide.training.trajectory import Drawn

DRAWERS = ("red", "blue", "green")


def opened(colour: str) -> Message:
    return Message("assistant", f"Action: open the {colour} drawer")


def right_drawer(thing: str) -> str:
    return {"ring": "red", "coin": "blue"}[thing]


def drawn(greedy: str) -> tuple[Drawn, ...]:
    """Each drawer once, one of them by the greedy reply."""
    return tuple(Drawn(opened(colour), 1, colour == greedy) for colour in DRAWERS)


def episodes(count: int, seed: int = 0) -> list[LearnedEpisode]:
    """One guess a step, of which the first decides; the second is luck."""
    chance = Random(seed)
    found = []
    for number in range(count):
        thing = ("ring", "coin")[number % 2]
        start: History = (Message("user", f"Find the {thing} of guest {number}."),)
        first, second = chance.choice(DRAWERS), chance.choice(DRAWERS)
        right = first == right_drawer(thing)
        after = (*start, opened(first), Message("user", "Something rattles."))
        reward = float(right and chance.random() < 0.7)
        found.append(LearnedEpisode(f"{number}", (start, after), (opened(first), opened(second)), reward))
    return found


@cache
def learned_of_120() -> Learned:
    """The whole of what 120 episodes teach, for several tests."""
    return learn(episodes(120), Options(), Hasher(b"salt"))


@pytest.mark.parametrize(("thing", "drawer"), [("ring", "red"), ("coin", "blue")])
def test_what_led_to_success_is_learned_for_tasks_that_were_not_recorded(thing: str, drawer: str) -> None:
    model = learned_of_120().model
    state = (Message("user", f"Find the {thing} of a new guest."),)

    q_values = model.q_values(state, tuple(map(opened, DRAWERS)))

    assert DRAWERS[int(np.argmax(q_values))] == drawer


def test_q_is_on_the_scale_of_the_outcomes() -> None:
    recorded = episodes(120)
    model = learned_of_120().model

    means = [np.mean(model.q_values(e.states[0], tuple(map(opened, DRAWERS)))) for e in recorded]

    assert np.mean(means) == pytest.approx(np.mean([e.reward for e in recorded]), abs=0.1)


def test_equal_outcomes_leave_nothing_to_prefer() -> None:
    alike = [LearnedEpisode(e.task, e.states, e.actions, 1.0) for e in episodes(20)]

    q_values = learn(alike, Options(), Hasher(b"salt")).model.q_values(alike[0].states[0], tuple(map(opened, DRAWERS)))

    assert q_values == pytest.approx([1.0] * 3, abs=1e-6)


def test_lambda_returns_mix_the_outcome_with_the_next_value() -> None:
    outcome = np.array([1.0, 1.0, 0.0])
    values = np.array([0.5, 0.8, 0.2])
    last = np.array([False, True, True])

    assert trace_returns(outcome, values, last, trace=1.0) == pytest.approx([1.0, 1.0, 0.0])
    assert trace_returns(outcome, values, last, trace=0.0) == pytest.approx([0.8, 1.0, 0.0])
    assert trace_returns(outcome, values, last, trace=0.5) == pytest.approx([0.9, 1.0, 0.0])


def test_episodes_of_one_task_are_in_one_fold() -> None:
    assert folds_of(["a", "b", "a", "c"], most=2) == [0, 1, 0, 0]
    assert folds_of(["a", "a"]) == [0, 0]


def test_it_is_licensed_where_it_learned_and_not_where_outcomes_are_luck() -> None:
    chance = Random(1)
    luck = [LearnedEpisode(e.task, e.states, e.actions, float(chance.random() < 0.3)) for e in episodes(60)]

    for recorded, granted in ((episodes(160), True), (luck, False)):
        learned = learn(recorded, Options(), Hasher(b"salt"))
        assert licence_of(learned.evidence, learned.credit).granted is granted


def test_one_task_is_learned_from_and_not_judged() -> None:
    recorded = [LearnedEpisode("one", e.states, e.actions, e.reward) for e in episodes(10)]

    learned = learn(recorded, Options(), Hasher(b"salt"))

    assert learned.evidence.decisions == 0
    assert not licence_of(learned.evidence, learned.credit).granted


def test_held_back_episodes_judge_what_a_task_that_comes_again_teaches() -> None:
    """An agent whose every episode begins with the same words has a single task."""
    recorded = [LearnedEpisode("one", e.states, e.actions, e.reward) for e in episodes(160)]

    learned = learn(recorded, Options(held_back="episodes"), Hasher(b"salt"))
    licence = licence_of(learned.evidence, learned.credit, held_back="episodes")

    assert licence.granted
    assert "of 160 held-back episodes" in licence.reason


@pytest.mark.parametrize("held_back", ["tasks", "episodes"])
def test_candidates_of_a_played_episode_are_judged_together_and_count_once(held_back: HeldBack) -> None:
    """Two candidates in each of 39 played episodes."""
    tried = [replace(e, part_of=f"groups:{number // 2}") for number, e in enumerate(episodes(78))]

    credit = learn(tried, Options(held_back=held_back), Hasher(b"salt")).credit

    assert credit.episodes == 39
    assert credit.units == (78 if held_back == "tasks" else 39)
    assert "and 40 episodes" in licence_of(evidence_of([]), credit).reason
    assert not credit.licensed


def test_episodes_are_held_back_where_tasks_are_too_few() -> None:
    recorded = episodes(40)
    few = [replace(e, task=f"{number % 19}") for number, e in enumerate(recorded)]
    assert judged_by(recorded) == "tasks"
    assert judged_by(few) == "episodes"


def test_held_back_episodes_license_no_luck() -> None:
    chance, granted = Random(3), 0
    for seed in range(4):
        luck = [LearnedEpisode("one", e.states, e.actions, float(chance.random() < 0.5)) for e in episodes(44, seed)]
        learned = learn(luck, Options(held_back="episodes"), Hasher(b"salt"))
        granted += licence_of(learned.evidence, learned.credit).granted

    assert granted <= 1


@pytest.mark.parametrize(("knows", "granted"), [(True, False), (False, True)])
def test_it_is_licensed_only_above_greedy_play_where_recordings_tell_it(knows: bool, granted: bool) -> None:
    def told(number: int, one: LearnedEpisode) -> LearnedEpisode:
        right = right_drawer(("ring", "coin")[number % 2])
        greedy = right if knows else "green"
        return replace(one, drawn=(drawn(greedy), drawn("green")))

    learned = learn([told(*one) for one in enumerate(episodes(120))], Options(), Hasher(b"salt"))

    assert set(learned.credit.leads) == {"votes", "greedy", "prior"}
    assert licence_of(learned.evidence, learned.credit).granted is granted


def test_an_action_teaches_whether_or_not_its_draws_differed() -> None:
    """Of two guests one is always generous; the drawers differ in what the other's hold."""

    def episode(number: int) -> LearnedEpisode:
        guest, colour = ("rich", "poor")[number % 2], DRAWERS[number // 2 % 2]
        start = (Message("user", f"Find a coin of the {guest} guest."),)
        reward = 1.0 if guest == "rich" else float(colour == "blue")
        alike = (Drawn(opened(colour), 2),)
        return LearnedEpisode(f"{number}", (start,), (opened(colour),), reward, (alike,))

    alike = [episode(number) for number in range(80)]
    other = [replace(e, drawn=((Drawn(opened("red")), Drawn(opened("blue"))),)) for e in alike]

    def gain(recorded: list[LearnedEpisode]) -> float:
        model = learn(recorded, Options(), Hasher(b"salt")).model
        red, blue = model.q_values(recorded[1].states[0], tuple(map(opened, DRAWERS[:2])))
        return blue - red

    assert gain(alike) > 0.1
    assert gain(other) > 0.1


def test_an_answer_is_judged_by_its_sentence_beside_the_question() -> None:
    """The years are new in each episode, and the sentences say the questions' words otherwise."""

    said = {"fire": "flames came in", "market": "stalls stood by", "bridge": "arches rose in"}

    def asked(number: int) -> tuple[History, list[Message]]:
        topics = [list(said)[(number + i) % 3] for i in range(2)]
        years = [f"{1500 + 2 * number}", f"{1501 + 2 * number}"]
        told = ". ".join(f"The {said[t]} {year}" for t, year in zip(topics, years, strict=True))
        question = Message("user", f"When was the {topics[number % 2]}?")
        read = (question, Message("assistant", "open chronicle"), Message("user", told))
        return read, [Message("assistant", f"answer {year}") for year in years]

    def episode(number: int) -> LearnedEpisode:
        read, answers = asked(number)
        reply = number // 2 % 2
        reward = float(reply == number % 2)
        return LearnedEpisode(f"{number}", (read,), (answers[reply],), reward)

    learned = learn([episode(number) for number in range(120)], Options(), Hasher(b"salt"))
    for number in range(120, 132):
        read, answers = asked(number)
        q_values = learned.model.q_values(read, tuple(answers))
        assert q_values[number % 2] > q_values[1 - number % 2]


def test_draws_weigh_by_the_propensity_of_a_random_choice() -> None:
    task = (Message("user", "Open it."),)
    told = (Drawn(opened("red"), count=3), Drawn(opened("blue")))
    random = tuple(replace(one, propensity=0.5) for one in told)
    episode = LearnedEpisode("t", (task,), (opened("red"),), 1.0, (told,))
    hasher = Hasher(b"", bits=10)
    by_count = steps_of([episode], hasher).others.rows.toarray()
    by_chance = steps_of([replace(episode, drawn=(random,))], hasher).others.rows.toarray()
    even = tuple(replace(one, count=1) for one in told)
    assert not np.array_equal(by_count, by_chance)
    assert np.array_equal(by_chance, steps_of([replace(episode, drawn=(even,))], hasher).others.rows.toarray())


def test_the_penalty_is_chosen_by_what_held_back_tasks_earned() -> None:
    recorded = episodes(120)

    chosen = learned_of_120().credit.correlation
    fixed = [learn(recorded, Options(alpha=alpha), Hasher(b"salt")).credit.correlation for alpha in PENALTIES]

    assert chosen == pytest.approx(max(fixed), abs=0.05)


def test_votes_weigh_as_much_as_recordings_say() -> None:
    """The agent draws the right drawer four times of six, and each of the others once."""

    def told(number: int, one: LearnedEpisode, votes: int) -> LearnedEpisode:
        right = right_drawer(("ring", "coin")[number % 2])
        some = tuple(Drawn(opened(c), votes if c == right else 1) for c in DRAWERS)
        return replace(one, drawn=(some, drawn("green")))

    recorded = list(enumerate(episodes(60)))
    knowing = learn([told(*one, votes=4) for one in recorded], Options(), Hasher(b"salt"))
    at_random = learn([told(*one, votes=1) for one in recorded], Options(), Hasher(b"salt"))

    assert knowing.weights.tau > 3 * at_random.weights.tau > 0


def rewarded(count: int, *, on_the_way: bool) -> list[LearnedEpisode]:
    """The right drawer earns half; what the second one adds to that or takes away is luck."""
    chance, found = Random(3), []
    for number, one in enumerate(episodes(count)):
        right = right_drawer(("ring", "coin")[number % 2])
        half = 0.5 * (one.actions[0] == opened(right))
        end = half + chance.choice((0.0, 0.5)) if chance.random() < 0.8 else 0.0
        rewards = (half, end) if on_the_way else ()
        found.append(replace(one, reward=end, rewards=rewards))
    return found


def test_rewards_on_the_way_tell_which_action_earned_them() -> None:
    def correlation(*, on_the_way: bool) -> float:
        recorded = rewarded(60, on_the_way=on_the_way)
        return learn(recorded, Options(), Hasher(b"salt")).credit.correlation

    assert correlation(on_the_way=True) > correlation(on_the_way=False) + 0.05


def test_rewards_on_the_way_that_foretell_nothing_are_left_aside() -> None:
    chance = Random(5)
    hasher = Hasher(b"salt")
    misleading = [replace(e, rewards=(chance.random(), e.reward)) for e in episodes(80)]

    assert fit(steps_of(misleading, hasher), Options()).unearned is None
    assert fit(steps_of(rewarded(80, on_the_way=True), hasher), Options()).unearned is not None


def test_what_is_earned_before_an_action_is_the_reward_after_the_one_before() -> None:
    (one,) = episodes(1)
    assert replace(one, rewards=(0.25, 1.0)).earned == (0.0, 0.25)
    assert one.earned == (0.0, 0.0)
