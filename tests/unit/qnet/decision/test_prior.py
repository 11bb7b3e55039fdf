"""The policy's draws and likelihoods as a prior, and the posterior that Q makes of it."""

import math

import pytest

from qguide.qnet.chat_messages import effects_of, message_key
from qguide.qnet.decision.selection import SMOOTHING, posterior, prior_of, select
from qguide.qnet.errors import InvalidCandidatesError
from qguide.qnet.types import Message, ToolCall


def said(*texts: str) -> list[Message]:
    return [Message("assistant", text) for text in texts]


def called(arguments: str, thought: str = "") -> Message:
    return Message("assistant", thought, (ToolCall("search", arguments),))


def test_votes_are_smoothed_shares_of_the_draws() -> None:
    prior = prior_of(said("a", "a", "a", "b"))
    assert prior.shares == pytest.approx((3.5 / 5, 3.5 / 5, 3.5 / 5, 1.5 / 5))
    assert prior.by == "votes"


def test_counts_stand_for_repetitions() -> None:
    assert prior_of(said("a", "b"), counts=(3, 1)).shares == pytest.approx((3.5 / 5, 1.5 / 5))
    assert prior_of(said("a", "b"), counts=(1, 0)).shares[1] == pytest.approx(SMOOTHING / 2)


def test_actions_with_other_thoughts_pool_their_votes() -> None:
    drawn = said("Thought: hm\nAction: go", "Thought: so\nAction: go", "Action: stay")
    assert effects_of(drawn) == (0, 0, 1)
    assert prior_of(drawn).shares == pytest.approx((2.5 / 4, 2.5 / 4, 1.5 / 4))


def test_an_input_on_its_own_line_is_a_part_of_the_action() -> None:
    first, second = said("Action: search\nInput: a", "Action: search\nInput: b")
    assert message_key(first) != message_key(second)


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (
            '{"thought": "hm", "action": "click", "element": 3}',
            '{"action": "click", "element": 3, "thought": "so"}',
            '{"thought": "hm", "action": "click", "element": 4}',
        ),
        ("THOUGHT: hm\n\n```bash\nls -l\n```", "so\n```sh\nls -l\n```", "hm\n```bash\nls\n```"),
        ("I am sorry. [OFFER voucher]", "So it is:\n[OFFER voucher]", "I am sorry. [OFFER taxi]"),
        ("The next action is ```click [3]```", "```click [3]```", "```click [4]```"),
        ("hm <action>go north</action>", "<action> go north </action>", "<action>stay</action>"),
    ],
)
def test_votes_are_pooled_however_the_act_is_written(one: str, same: str, other: str) -> None:
    assert effects_of(said(one, same, other)) == (0, 0, 1)


@pytest.mark.parametrize(
    "text", ["", "```", "``````", "{", "{}", '{"thought": "hm"}', "</action>", "[1, 2]", "{" * 9_999]
)
def test_a_text_in_which_nothing_acts_is_its_own_key(text: str) -> None:
    assert message_key(Message("assistant", text)) == text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("```\nx\n```\nSo it is 4.", "```\nx\n```\nSo it is 5."),
        ("Run\n```\nls\n```\nand\n```\nmake\n```", "Run\n```\nrm a\n```\nand\n```\nmake\n```"),
        ("````md\none ```x```\n````", "````md\ntwo ```x```\n````"),
        ("one\nmore ```", "two\nmore ```"),
        ("Press [OK]", "Never press [OK]"),
        ("It is shown. [12]", "It is not shown. [12]"),
        ("[READ] it first. [WAIT]", "[OPEN] it first. [WAIT]"),
        ("Action: create a\n```\nx\n```", "Action: append a\n```\nx\n```"),
        ("<tool_call>a</tool_call><tool_call>c</tool_call>",
         "<tool_call>b</tool_call><tool_call>c</tool_call>"),
        ('{"ok": true, "explanation": "a"}', '{"ok": true, "explanation": "b"}'),
    ],
)  # fmt: skip
def test_what_may_act_or_answer_itself_is_told_apart(one: str, other: str) -> None:
    assert effects_of(said(one, other)) == (0, 1)


def test_a_block_behind_the_marker_is_unwrapped_if_it_is_all() -> None:
    text = 'Thought: hm\nAction:\n```json\n{"action": "look", "thought": "so"}\n```'
    assert message_key(Message("assistant", text)) == '{"action": "look"}'


def test_a_key_can_be_written_whatever_its_characters() -> None:
    assert message_key(Message("assistant", '{"a": "\\ud800"}')).encode()


def test_equal_tool_calls_pool_their_votes() -> None:
    drawn = [called('{"a": 1, "b": 2}', "hm"), called('{"b":2,"a":1}'), called('{"a": 2}')]
    assert effects_of(drawn) == (0, 0, 1)


def test_likelihoods_of_one_effect_add_up() -> None:
    drawn = said("Thought: x\nAction: go", "Thought: y\nAction: go", "Action: stay")
    logs = [math.log(p) for p in (0.1, 0.2, 0.1)]
    prior = prior_of(drawn, by="likelihood", logprobs=logs)
    assert prior.by == "likelihood"
    assert prior.shares == pytest.approx((0.75, 0.75, 0.25))


def test_a_reply_that_was_drawn_twice_has_its_likelihood_once() -> None:
    logs = [math.log(p) for p in (0.2, 0.2, 0.6)]
    prior = prior_of(said("a", "a", "b"), by="likelihood", logprobs=logs)
    assert prior.shares == pytest.approx((0.25, 0.25, 0.75))


def test_likelihood_may_be_taken_per_token() -> None:
    prior = prior_of(said("a", "b"), by="likelihood-per-token", logprobs=(-4.0, -6.0), tokens=(2, 6))
    assert prior.likeliest == 1


def test_one_unknown_logprob_leaves_the_votes() -> None:
    prior = prior_of(said("a", "a", "b"), by="likelihood", logprobs=(-1.0, -1.0, None))
    assert (prior.by, prior.likeliest) == ("votes", 0)


@pytest.mark.parametrize("wrong", [{"counts": (1,)}, {"logprobs": (0.0, 0.0, 0.0)}])
def test_numbers_that_are_not_one_per_candidate_are_refused(wrong: dict[str, tuple[int]]) -> None:
    with pytest.raises(InvalidCandidatesError, match=r"(counts .* 1|logprobs .* 3) entries, .* 2 candidates"):
        prior_of(said("a", "b"), **wrong)  # type: ignore[arg-type]


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(InvalidCandidatesError, match=r"count .*-1"):
        prior_of(said("a", "b"), counts=(2, -1))


def test_the_posterior_is_the_prior_tilted_by_q() -> None:
    prior = prior_of(said("a", "a", "a", "b"))
    shares = posterior((0.0, 0.0, 0.0, 1.0), prior, tau=1.0)
    weights = (3.5, 1.5 * math.e)
    assert shares[0] == pytest.approx(weights[0] / sum(weights))
    assert shares[3] == pytest.approx(weights[1] / sum(weights))


def test_at_tau_0_the_posterior_is_the_priors_ratio_among_the_highest_q() -> None:
    prior = prior_of(said("a", "a", "b", "c"))
    assert posterior((1.0, 1.0, 1.0, 0.5), prior, tau=0) == pytest.approx((2.5 / 4, 2.5 / 4, 1.5 / 4, 0))


def test_votes_outweigh_a_small_difference_of_q_and_not_a_large_one() -> None:
    drawn = said("a", "a", "a", "a", "b")
    small, large = (0.5,) * 4 + (0.52,), (0.1,) * 4 + (0.9,)
    assert select(drawn, small, tau=0.05).chosen == 0
    assert select(drawn, large, tau=0.05).chosen == 4
    assert select(drawn, large, tau=0.05).reason == "highest_posterior"


def test_where_q_is_the_same_for_all_the_votes_decide() -> None:
    drawn = said("a", "b", "b")
    for tau in (None, 0.05):
        selection = select(drawn, (0.5, 0.5, 0.5), tau=tau)
        assert (selection.chosen, selection.reason) == (1, "likeliest")


def test_rules_are_compared_before_q() -> None:
    drawn = said("a", "b", "c")
    selection = select(drawn, (0.9, 0.2, 0.3), rules=[(0.0,), (1.0,), (1.0,)])
    assert (selection.chosen, selection.reason) == (2, "highest_q")
    selection = select(drawn, (0.9, 0.2, 0.3), rules=[(0.0,), (1.0,), (0.5,)])
    assert (selection.chosen, selection.reason) == (1, "rules")


def test_a_weight_of_the_greedy_reply_multiplies_its_share() -> None:
    drawn = said("Thought: hm\nAction: go", "Action: stay", "Action: go")
    plain = prior_of(drawn)
    weighed = prior_of(drawn, greedy=1, greedy_weight=math.log(3))
    go, stay, _ = plain.shares
    assert weighed.shares == pytest.approx([s / (go + 3 * stay) for s in (go, 3 * stay, go)])
    assert prior_of(drawn, greedy=None, greedy_weight=1.0) == plain
