"""Replies of many states in one packed row: their tokens, and log pi as if each stood alone."""

from functools import partial
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, MptConfig

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import rows_of
from qguide.qnet.scoring.logprobs import SharedPrefixLogprobScorer
from qguide.qnet.types import History, Message, ScoreRequest
from qguide.training.data.decision_groups import GroupLabels
from qguide.training.data.preferences import PreferenceRow
from qguide.training.optimization.packed_replies import PackedReplies, add_pair, pack_candidates, reply_path
from qguide.training.policy_training.logprobs import reply_logprobs, require_packable
from tests.support.decision_groups import candidate, groups_row
from tests.support.tiny_models import ARCHITECTURES, policy_model, renderer

START: History = (Message("user", "you see mug"),)
LATER: History = (*START, Message("assistant", "go to desk"), Message("user", "you see shelf"))


def said(text: str) -> Message:
    return Message("assistant", text)


def pair(history: History, chosen: str, rejected: str) -> PreferenceRow:
    return compared(history, (said(chosen),), (said(rejected),))


def compared(history: History, chosen: History, rejected: History, *, level: str = "step") -> PreferenceRow:
    fields: dict[str, Any] = {
        "task_id": "t",
        "kind": "k",
        "environment": "e",
        "level": level,
        "source": "group",
        "messages": rows_of(history),
        "chosen": rows_of(chosen),
        "rejected": rows_of(rejected),
        "chosen_value": 1.0,
        "rejected_value": 0.5,
        "depth": 0,
    }
    return PreferenceRow.model_validate(fields)


ROWS = (
    pair(START, "take mug", "go to shelf"),
    pair(START, "take mug", "open desk"),
    pair(LATER, "open shelf", "take mug"),
)


def packed(*rows: PreferenceRow, **limits: int) -> list[PackedReplies]:
    trees: list[PackedReplies] = []
    for row in rows:
        add_pair(trees, renderer(), row, **({"max_length": 200, "max_tokens": 400} | limits))
    return trees


def test_pairs_of_a_task_share_their_beginnings() -> None:
    [tree] = packed(*ROWS)
    alone = sum(len(row) for one in ROWS for row in packed(one))
    assert len(tree) < alone
    assert [(p.chosen, p.rejected) for p in tree.pairs] == [(0, 1), (0, 2), (3, 4)]


def test_a_row_that_is_full_is_followed_by_another() -> None:
    trees = packed(*ROWS, max_tokens=1)
    assert [len(tree.pairs) for tree in trees] == [1, 1, 1]


def test_a_pair_with_a_path_that_is_too_long_is_left_out() -> None:
    longest = max(len(reply_path(renderer(), LATER, (said(t),)).token_ids) for t in ("take mug",))
    [tree] = packed(*ROWS, max_length=longest - 1)
    assert len(tree.pairs) == 2


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_log_pi_of_a_packed_reply_is_that_which_a_scorer_reads(architecture: str) -> None:
    loaded = policy_model(architecture)
    [tree] = packed(*ROWS)
    with torch.no_grad():
        logprobs = reply_logprobs(loaded.model, tree).tolist()
    require_packable(loaded.model)
    scorer = SharedPrefixLogprobScorer(loaded)
    for row, of_pair in zip(ROWS, tree.pairs, strict=True):
        candidates = tuple(said(side[0].content) for side in (row.chosen, row.rejected))
        [scored] = scorer.score([ScoreRequest(row.history, candidates)])
        mine = [logprobs[of_pair.chosen], logprobs[of_pair.rejected]]
        assert mine == pytest.approx(list(scored.q_values), abs=1e-4)


def test_a_policy_that_ignores_the_mask_is_refused() -> None:
    config = MptConfig(vocab_size=64, d_model=16, n_layers=2, n_heads=2, initializer_range=0.3)
    torch.manual_seed(0)
    with pytest.raises(ConfigError, match=r"MptForCausalLM .* 0\.0\d+ .*attention"):
        require_packable(AutoModelForCausalLM.from_config(config).eval())


def test_observations_within_a_trajectory_are_not_scored() -> None:
    whole = (said("go to desk"), Message("user", "you see shelf"), said("open shelf"))
    path = reply_path(renderer(), START, whole)
    tokens = [path.token_ids[position] for position in path.scored]
    replies = [renderer().encode_candidate(message) for message in whole[::2]]
    assert tokens == replies[0] + replies[1]
    assert path.scored[-1] == len(path.token_ids) - 1
    row = compared(START, whole, (said("take mug"),), level="trajectory")
    [tree] = packed(row)
    model = policy_model().model
    with torch.no_grad():
        both = reply_logprobs(model, tree)
        steps = PackedReplies()
        steps.add_reply(reply_path(renderer(), START, whole[:1]))
        steps.add_reply(reply_path(renderer(), (*START, *whole[:2]), whole[2:]))
        assert float(both[0]) == pytest.approx(float(reply_logprobs(model, steps).sum()), abs=1e-4)


def test_candidates_of_an_episode_keep_their_steps_and_validity() -> None:
    ends = partial(candidate, observation="you see shelf")
    row = groups_row(
        ([ends("go to desk", (1.0, 3)), ends("go", (1.0, 4))], 0),
        ([ends("open shelf", (1.0, 2)), ends("take mug", (1.0, 5), valid=False)], 0),
        first_observation="you see mug",
    )
    [tree] = pack_candidates(renderer(), row, GroupLabels(), max_length=200, max_tokens=400)
    assert [group.choice.steps for group in tree.groups] == [(2, 3), (1, 4)]
    assert [group.choice.valid for group in tree.groups] == [(True, True), (True, False)]
    assert [group.places for group in tree.groups] == [(0, 1), (2, 3)]
