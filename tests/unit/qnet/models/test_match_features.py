"""Match features: what they say of a candidate, and that they say it of nothing but tokens."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qguide.qnet.models.match_features import FLAGS, MATCH_FEATURES, TokenTurns, match_features, turns_of

END = 0
tokens = st.lists(st.integers(1, 6), max_size=9).map(tuple)
candidates = tokens.map(lambda said: (*said, END))


@st.composite
def histories(draw: st.DrawFn) -> TokenTurns:
    """Few different tokens, so that turns repeat and overlap often."""
    actions = draw(st.lists(tokens, max_size=6))
    observations = draw(st.lists(tokens, min_size=len(actions) + 1, max_size=len(actions) + 1))
    return TokenTurns(tuple(observations), tuple(actions))


def features_of(turns: TokenTurns, candidate: tuple[int, ...]) -> dict[str, float]:
    [row_F] = match_features(turns, [candidate])
    return dict(zip(MATCH_FEATURES, map(float, row_F), strict=True))


READ = TokenTurns(observations=((1, 2, 3), (4, 5, 9), (4, 6, 7)), actions=((20, 5), (21, 6)))


def test_each_feature_has_a_name_of_its_own() -> None:
    assert len(set(MATCH_FEATURES)) == len(MATCH_FEATURES)


@pytest.mark.parametrize(
    ("flag", "token"),
    [
        ("in_last_observation", 7),
        ("in_observation_before_last", 9),
        ("in_first_observation", 1),
        ("in_last_action", 21),
        ("in_any_action", 20),
        ("in_any_observation", 9),
    ],
)
def test_a_flag_tells_where_a_token_occurred(flag: str, token: int) -> None:
    assert features_of(READ, (8, token, END))[f"last-0.{flag}"] == 1
    assert features_of(READ, (8, 99, END))[f"last-0.{flag}"] == 0


def test_the_shares_and_the_weakest_flags_are_those_of_all_tokens() -> None:
    found = features_of(READ, (7, 6, 99, 4, END))
    assert found["share.in_last_observation"] == 0.75
    assert found["minimum.in_last_observation"] == 0
    assert features_of(READ, (7, 6, END))["minimum.in_last_observation"] == 1


def test_neighbours_are_told_from_tokens_that_only_both_occur() -> None:
    flag = "last-0.follows_its_neighbour_in_last_observation"
    assert features_of(READ, (6, 7, END))[flag] == 1
    assert features_of(READ, (4, 7, END))[flag] == 0


def test_what_was_seen_with_a_place_is_told_after_other_places_were_read() -> None:
    """Token 5 was listed with 9, which the latest observation does not mention."""
    assert features_of(READ, (5, 9, END))["last-1.with.last-0"] == 1
    assert features_of(READ, (3, 9, END))["last-1.with.last-0"] == 0


def test_a_repeated_action_is_told_with_what_it_was_answered() -> None:
    silence = (30, 31)
    turns = TokenTurns(((1, 2), silence, (4, 5), silence), ((7, 8), (9,), (7, 8)))
    found = features_of(turns, (7, 8, END))
    assert found["same.said"] == 1
    assert found["same.times"] == pytest.approx(math.log(3))
    assert found["same.recency"] == 1
    assert found["same.answer_count"] == pytest.approx(math.log(2))
    assert found["same.answer_is_last"] == 1
    assert found["prefix_of_last"] == found["suffix"] == 2 / 8
    other = features_of(turns, (6, 8, END))
    assert (other["same.said"], other["same_last_1.said"], other["same_last_3.said"]) == (0, 1, 0)


@given(histories(), st.lists(candidates, min_size=1, max_size=4))
def test_a_candidate_s_features_depend_on_no_other_candidate(turns: TokenTurns, asked: list[tuple[int, ...]]) -> None:
    together_CF = match_features(turns, asked)
    alone_CF = np.concatenate([match_features(turns, [candidate]) for candidate in asked])
    np.testing.assert_array_equal(together_CF, alone_CF)


@given(histories(), candidates, st.permutations(range(1, 7)))
def test_which_number_a_token_has_says_nothing(
    turns: TokenTurns, candidate: tuple[int, ...], renamed: list[int]
) -> None:
    def rename(sequence: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(renamed[token - 1] if token else END for token in sequence)

    others = TokenTurns(tuple(map(rename, turns.observations)), tuple(map(rename, turns.actions)))
    np.testing.assert_array_equal(match_features(turns, [candidate]), match_features(others, [rename(candidate)]))


@given(histories(), candidates)
def test_features_equal_what_the_turns_say_read_one_by_one(turns: TokenTurns, candidate: tuple[int, ...]) -> None:
    found, said = features_of(turns, candidate), candidate[:-1]
    assert found["same.said"] == (said in turns.actions)
    assert found["prefix"] * 8 == max((shared(a, said) for a in turns.actions), default=0)
    assert found["suffix"] * 8 == max((shared(a[::-1], said[::-1]) for a in turns.actions), default=0)
    for back, token in enumerate(said[::-1][:8]):
        assert found[f"last-{back}.in_any_observation"] == any(
            token in observation for observation in turns.observations
        )
    for flag in FLAGS:
        if len(said) < 8:
            assert found[f"last-7.{flag}"] == 0


@given(histories(), candidates)
def test_features_are_small_numbers(turns: TokenTurns, candidate: tuple[int, ...]) -> None:
    row_CF = match_features(turns, [candidate])
    assert row_CF.min() >= 0
    assert row_CF.max() <= 5


@given(histories())
def test_turns_are_cut_where_actions_stand(turns: TokenTurns) -> None:
    token_ids = list(turns.observations[0])
    spans = []
    for action, observation in zip(turns.actions, turns.observations[1:], strict=True):
        spans.append((len(token_ids), len(token_ids) + len(action) + 1))
        token_ids += [*action, END, *observation]
    assert turns_of(token_ids, spans) == turns


def shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_no_candidate_has_no_features_and_an_empty_one_has_no_tokens() -> None:
    turns = TokenTurns(((1, 2), (3,)), ((4, 5),))
    assert match_features(turns, []).shape == (0, len(MATCH_FEATURES))
    both = match_features(turns, [[9], [4, 5, 9]])
    assert not both[0, : MATCH_FEATURES.index("last-1.with.last-0")].any()
    assert (both[1] == match_features(turns, [[4, 5, 9]])[0]).all()
