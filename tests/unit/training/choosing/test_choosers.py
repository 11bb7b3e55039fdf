"""Rules, votes with Q, and their expected rewards, on one group by hand."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.types import Message
from qguide.training.choosing.attempts import AttemptTurn, RecordedAttempt, family_of, section_of
from qguide.training.choosing.choosers import (
    best_rule,
    earned,
    fitted_tau,
    posterior_scores,
    rule_scores,
    stopped,
    valid_first,
)
from qguide.training.choosing.features import Cut, candidates_of, numbers_of
from qguide.training.choosing.figures import flips_bound
from qguide.training.choosing.small_q import credits_of
from qguide.training.choosing.table import Table, draw_groups, table_of
from qguide.training.evaluation.statistics import sign_flip_p_value

ANSWERS = (("a", "7", 1.0), ("b", "9", 0.0), ("b", "9", 0.0), ("c", "Error: x", 0.0))


def attempt(model: str, action: str, answer: str, reward: float) -> RecordedAttempt:
    """An attempt of two turns."""
    turns = (AttemptTurn(Message("assistant", action), answer), AttemptTurn(Message("assistant", "done"), ""))
    return RecordedAttempt("set/1", model, (Message("user", "What is it?"),), turns, reward)


def table_by_hand() -> Table:
    attempts = [attempt(f"m{i}", *one) for i, one in enumerate(ANSWERS)]
    states = candidates_of(attempts, Cut(observed=True))
    return table_of(states, {f"m{i}": "m" for i in range(4)})


GROUP = np.array([[0, 1, 2, 3]])


def test_each_rule_earns_the_mean_of_what_it_prefers() -> None:
    table = table_by_hand()
    found = {n: float(earned(table, GROUP, s)[0]) for n, s in rule_scores(table, GROUP).items()}
    assert found == {
        "random": 0.25,
        "majority": 0.0,
        "majority by result": 0.0,
        "valid": pytest.approx(1 / 3),
        "valid then majority": 0.0,
        "oracle": 1.0,
    }


def test_the_likeliest_is_a_rule_where_every_likelihood_is_known() -> None:
    table = table_by_hand()
    assert "likeliest" not in rule_scores(table, GROUP)
    known = replace(table, logprobs=np.array([-3.0, -1.0, -1.0, -2.0], np.float32))
    assert earned(known, GROUP, rule_scores(known, GROUP)["likeliest"]).tolist() == [0.0]
    lucky = replace(table, logprobs=np.array([-0.5, -1.0, -1.0, -2.0], np.float32))
    assert earned(lucky, GROUP, rule_scores(lucky, GROUP)["likeliest"]).tolist() == [1.0]
    groups = np.repeat(GROUP, 2, axis=0)
    assert best_rule(lucky, groups, np.zeros((2, 4), np.float32))[0] == "likeliest"


def test_votes_weigh_as_much_beside_q_as_tau_says() -> None:
    table = table_by_hand()
    logits = np.array([[1.0, 0.5, 0.0, -2.0]], np.float32)
    chosen = {tau: posterior_scores(table, GROUP, logits, tau).argmax().item() for tau in (0.0, 0.1, 2.5)}
    assert chosen == {0.0: 0, 0.1: 0, 2.5: 1}
    assert fitted_tau(table, GROUP, logits) == 0.0


def test_an_invalid_candidate_stands_behind_valid_ones_however_high_its_q_is() -> None:
    table = table_by_hand()
    scores = posterior_scores(table, GROUP, np.array([[0.0, -1.0, -1.0, 5.0]], np.float32), 0.0)
    assert scores.argmax() == 3
    assert valid_first(table.valid[GROUP], scores).argsort().tolist() == [[3, 1, 2, 0]]


def test_q_has_to_earn_more_than_the_best_rule_on_held_back_tasks() -> None:
    attempts = [
        replace(attempt(f"m{i}", *one), task=f"set/{task}") for task in range(3) for i, one in enumerate(ANSWERS)
    ]
    table = table_of(candidates_of(attempts, Cut(observed=True)), {f"m{i}": "m" for i in range(4)})
    groups = np.arange(12).reshape(3, 4)
    right, like_votes = np.zeros((2, 3, 4), np.float32)
    right[:, 0] = like_votes[:, 1] = 1
    assert best_rule(table, groups, right) == ("valid", True)
    assert best_rule(table, groups, like_votes) == ("valid", False)
    assert best_rule(table, groups[:1], right[:1]) == ("valid", False)  # one task proves nothing


def test_a_shared_first_action_makes_a_state() -> None:
    attempts = [attempt(f"m{i}", *one) for i, one in enumerate(ANSWERS)]
    [(name, found)] = candidates_of(attempts, Cut(after=1)).items()
    assert name == "set/1\nb"
    assert [candidate.attempt.model for candidate in found] == ["m1", "m2"]


def test_an_attempt_that_ended_with_its_last_turn_is_no_candidate() -> None:
    attempts = [attempt(f"m{i}", *one) for i, one in enumerate(ANSWERS)]
    ended = [replace(attempts[0], turns=attempts[0].turns[:1]), *attempts[1:]]
    [found] = candidates_of(ended, Cut(observed=True)).values()
    assert [candidate.attempt.model for candidate in found] == ["m1", "m2", "m3"]


def test_one_damaged_record_lets_no_instructions_into_a_models_other_questions() -> None:
    asked = [f"Do as you are told.\nIn tags.\nHow much is {n} + {n}?" for n in range(12)]
    openings = ["I do not understand you.", *asked]
    attempts = [
        replace(attempt(model, "4", "", 1.0), task=f"set/{n}", opening=(Message("user", opening),))
        for n, opening in enumerate(openings)
        for model in ("m0", "m1")
    ]
    states = candidates_of(attempts, Cut())
    texts = [found[0].asked.text for found in states.values()]
    assert texts == ["i do not understand you.", *(f"how much is {n} + {n}?" for n in range(12))]


def test_groups_are_of_one_state_and_of_those_that_may_be_drawn() -> None:
    table = table_by_hand()
    among = np.array([True, False, True, True])
    groups = draw_groups(table, among, size=2, draws=50, rng=np.random.default_rng(0))
    assert groups.shape == (50, 2)
    assert set(groups.ravel().tolist()) == {0, 2, 3}
    assert not len(draw_groups(table, among, size=4, draws=1, rng=np.random.default_rng(0)))


def test_sections_and_families_come_from_names() -> None:
    sections = {"reasoning/gsm8k/21": "reasoning/gsm8k", "simple_3": "simple", "7": "7"}
    assert {task: section_of(task) for task in sections} == sections
    families = {"llama": ("*llama-3*",)}
    assert family_of("Meta-Llama-3-8B", families) == "llama"
    assert family_of("gpt-4-0613", families) == "gpt"


def test_attempts_that_are_stopped_write_no_more_and_cannot_succeed() -> None:
    table = table_by_hand()
    scores = np.array([[0.0, 3.0, 2.0, 1.0]], np.float32)  # the success comes last
    success, written = stopped(table, GROUP, scores)[0].T
    assert success.tolist() == [0.0, 0.0, 0.0, 1.0]
    assert written.tolist() == [4 + 4, 4 + 8, 4 + 12, 4 + 16]  # four letters, then "done" of each


def test_ends_are_read_however_long_attempts_were() -> None:
    attempts = [attempt(f"m{i}", *one) for i, one in enumerate(ANSWERS)]
    longer = replace(attempts[0], turns=(attempts[1].turns[0], *attempts[0].turns))
    short = replace(attempts[1], turns=attempts[1].turns[:1])
    [found] = candidates_of([longer, short, *attempts[2:]], Cut(turns=2, finished=True)).values()
    assert [candidate.attempt.model for candidate in found] == ["m0", "m2", "m3"]
    assert found[0].turns == attempts[0].turns
    assert numbers_of(found[0]) == numbers_of(replace(found[0], attempt=attempts[0]))
    table = table_of({"set/1": found}, {f"m{i}": "m" for i in range(4)})
    assert table.to_come.tolist() == [0, 0, 0]


def test_actions_of_equal_answers_are_equal() -> None:
    said = ("So it is <a> 7 </a>.", "<a>9</a> no, <A>7</A>", "<a>9</a>", "I do not know.")
    attempts = [attempt(f"m{i}", text, "", 0.0) for i, text in enumerate(said)]
    cut = Cut(answer=re.compile("(?i)<a>(.*?)</a>"))
    [found] = candidates_of(attempts, cut).values()
    assert [candidate.action_key for candidate in found] == ["7", "7", "9", "i do not know."]
    assert [candidate.valid for candidate in found] == [True, True, True, False]


def table_of_two(actions: tuple[str, str]) -> Table:
    """Ten tasks in which the first of two actions succeeds, but in the last the other."""
    attempts = [
        replace(attempt(f"m{i}", action, "", float((i == 0) != (task == 9))), task=f"set/{task}")
        for task in range(10)
        for i, action in enumerate(actions)
    ]
    return table_of(candidates_of(attempts, Cut()), {"m0": "m", "m1": "m"})


def test_words_and_forms_have_the_credit_of_other_tasks() -> None:
    table = table_of_two(("good plan", "bad plan"))
    for kind in range(2):
        credit = credits_of(table, np.arange(18).reshape(9, 2))[:, kind].reshape(10, 2)
        assert (credit[:, 0] > credit[:, 1]).all()  # in the last task, too, which is not read
        read = credits_of(table, np.arange(20).reshape(10, 2))[:, kind].reshape(10, 2)
        assert read[9, 0] > read[9, 1]  # and which does not speak for itself when it is
        alone = credits_of(table, np.arange(2).reshape(1, 2))[:, kind]
        assert not alone[:2].any()  # no other task has been read
        assert alone[2] > alone[3]


def test_forms_tell_what_words_do_not() -> None:
    table = table_of_two(("a plan: (b)", "A plan:\n(b)"))
    words, forms = credits_of(table, np.arange(18).reshape(9, 2)).reshape(10, 2, 2).transpose(2, 0, 1)
    assert (words[:, 0] == words[:, 1]).all()
    assert (forms[:, 0] > forms[:, 1]).all()


@given(st.lists(st.floats(-1, 1, width=16), min_size=2, max_size=8))
def test_the_bound_of_all_flips_is_never_below_their_p_value(gains: list[float]) -> None:
    assert flips_bound(gains) >= sign_flip_p_value(gains, np.random.default_rng(0)) - 1e-9


def test_the_bound_tells_what_ten_thousand_flips_cannot() -> None:
    assert flips_bound([1.0] * 100) < 1e-20
