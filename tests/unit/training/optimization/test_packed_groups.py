"""An episode's decisions as one packed tree: labels, siblings, features, and Q as if alone."""

from typing import Any

import pytest
import torch

from qguide.qnet.models.match_features import MATCH_FEATURES
from qguide.qnet.records import NodeRow
from qguide.qnet.scoring.value_head import NaiveScorer
from qguide.qnet.types import Message, ScoreRequest
from qguide.training.data.decision_groups import GroupLabels, choices_of
from qguide.training.optimization.packed_groups import pack_groups
from qguide.training.optimization.packed_trees import Framing, PackedTree
from qguide.training.q_training.validation import q_of_tree
from tests.support.decision_groups import candidate, groups_row
from tests.support.tiny_models import q_model, renderer


def tried(action: str, *, steps: int, won: bool = True, valid: bool = True) -> NodeRow:
    seen = "you see mug" if valid else "you"
    return candidate(action, (float(won), steps), observation=seen, valid=valid)


EPISODE = groups_row(
    ([tried("go to desk", steps=3), tried("go to shelf", steps=6, valid=False)], 1),
    ([tried("go to shelf", steps=5, valid=False)], 0),
    (
        [
            tried("go to shelf", steps=5, valid=False),
            tried("open shelf", steps=60, won=False),
            tried("go to desk", steps=3),
        ],
        2,
    ),
    ([tried("take mug", steps=2)], 0),
    first_observation="take mug from desk",
)


def packed(**changes: Any) -> list[PackedTree]:
    options: dict[str, Any] = {"min_label_margin": 0.005, "max_length": 200, "max_tokens": 400, "with_features": True}
    labels = changes.pop("labels", GroupLabels())
    return pack_groups(renderer(), EPISODE, labels, **(options | changes))


def test_labels_are_linear_in_the_steps_after_the_action() -> None:
    [tree] = packed()
    assert [group.choice.steps for group in tree.groups] == [(2, 5), (8, 40, 2)]
    q_values = [group.choice.values for group in tree.groups]
    assert q_values == [pytest.approx([0.96, 0.9]), pytest.approx([0.84, 0.2, 0.96])]
    assert sum(tree.weight) == 5


def test_labels_may_be_discounted_outcomes() -> None:
    [tree] = packed(labels=GroupLabels(scale="discounted", gamma=0.5, noop_cost_steps=0))
    q_values = [group.choice.values for group in tree.groups]
    assert q_values == [pytest.approx([0.25, 0.5**5]), pytest.approx([0.5**4, 0, 0.25])]


def test_pairs_are_of_one_state_the_better_one_first() -> None:
    [tree] = packed()
    assert len(tree.pairs) == 1 + 3
    assert all(better.q_value > worse.q_value for better, worse in tree.pairs)


def test_q_is_read_where_a_scorer_reads_it() -> None:
    loaded = q_model(head_features="match-1")
    [tree] = packed()
    with torch.inference_mode():
        q_T = q_of_tree(loaded.model, tree)
    for decision, group in zip(choices_of(EPISODE), tree.groups, strict=True):
        said = tuple(Message("assistant", c.action) for c in decision.candidates)
        [alone] = NaiveScorer(loaded).score([ScoreRequest(decision.history, said)])
        found = group.scored(q_T.tolist()).q_values
        assert found == pytest.approx(alone.q_values, abs=1e-5)


def test_q_after_an_observation_is_read_where_a_scorer_reads_it() -> None:
    loaded = q_model(head_features="match-1", reads_observation=True)
    [tree] = packed(read_at="observation")
    with torch.inference_mode():
        q_T = q_of_tree(loaded.model, tree)
    for decision, group in zip(choices_of(EPISODE), tree.groups, strict=True):
        said = tuple(Message("assistant", c.action) for c in decision.candidates)
        answers = tuple((Message("user", c.observation),) for c in decision.candidates)
        request = ScoreRequest(decision.history, said, observations=answers)
        [alone] = NaiveScorer(loaded).score([request])
        found = group.scored(q_T.tolist()).q_values
        assert found == pytest.approx(alone.q_values, abs=1e-5)


def test_states_with_one_candidate_are_labelled_after_their_observation() -> None:
    [at_action], [after] = packed(), packed(read_at="observation")
    assert [sum(at_action.weight), sum(after.weight)] == [5, 7]
    assert [len(g.places) for g in after.groups] == [len(g.places) for g in at_action.groups]
    assert len(after.pairs) == len(at_action.pairs)
    assert sum(place in at_action.features for g in at_action.groups for place in g.places) == 5
    assert len(after.features) == 7


def test_what_the_world_wrote_is_marked_and_the_chat_template_is_not() -> None:
    framing = Framing.of(renderer())
    [plain], [tree] = packed(), packed(framing=framing)
    assert not plain.observed
    assert len(tree) > len(plain)

    def text(token: int) -> str:
        return str(renderer().tokenizer.decode([token])).strip()

    assert {text(tree.token_ids[i]) for i in tree.observed} == {"you", "see", "mug"}
    ends = {place for group in tree.groups for place in group.places}
    assert set(tree.outcomes) == ends
    assert {text(token) for token in tree.outcomes.values()} == {"you"}


def test_every_candidate_has_its_features() -> None:
    [tree] = packed()
    features_TF = tree.features_TF
    assert features_TF is not None
    assert features_TF.shape == (len(tree), len(MATCH_FEATURES))
    read = {place for group in tree.groups for place in group.places}
    assert set(tree.features) == read
    assert packed(with_features=False)[0].features_TF is None


def test_a_small_budget_cuts_between_states() -> None:
    [whole] = packed()
    first, second = packed(max_tokens=len(whole) - 1)
    assert [len(first.groups), len(second.groups)] == [1, 1]
    assert len(second) > len(renderer().encode_candidate(Message("assistant", "go to desk")))
    assert packed(max_length=25)[0].groups == first.groups
