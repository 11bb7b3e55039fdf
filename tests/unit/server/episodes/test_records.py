"""Rows of an episode hold what its Q model read: messages, tool calls and their results."""

import pytest

from qguide.qnet.records import OfferRow, ThresholdActionRow, TreeRow
from qguide.qnet.types import Message, ToolCall, Verdict
from qguide.server.episodes.records import NotRecordableError, Redact, recorded_rows, texts_of
from qguide.server.episodes.state import Offer, Outcome, Transcript
from qguide.training.data.records import tree_from_row

SYSTEM = Message("system", "You find things.")
TASK = Message("user", "Find the mug.")
BOTH = Message(
    "assistant", "Both.", (ToolCall("look", '{"at": "desk"}', "call-1"), ToolCall("look", '{"at": "secret"}', "call-2"))
)
SEEN = (Message("tool", "A mug.", tool_call_id="call-1"), Message("tool", "No.", tool_call_id="call-2"))
TAKE = Message("assistant", "", (ToolCall("take", '{"what": "mug"}', "call-3"),))
DROP = Message("assistant", "", (ToolCall("drop", "{}", "call-3"),))
OUTCOME = Outcome(reward=1.0, observation="You have it.")


def offer(at: int, *candidates: Message) -> Offer:
    """The candidates of a step, of which the first one was chosen."""
    return Offer(
        at=at,
        q_values={candidate.text: 0.5 for candidate in candidates},
        chosen=candidates[0].text,
        q_model="q@1",
        policy="p",
        calling={c.text: c for c in candidates if c.tool_calls},
    )


EPISODE = Transcript(messages=(SYSTEM, TASK, BOTH, *SEEN), offers=(offer(2, BOTH), offer(5, TAKE, DROP)))


def tree_row(episode: Transcript, outcome: Outcome = OUTCOME, redact: Redact = str) -> TreeRow:
    """The path taken."""
    tree, _ = recorded_rows(episode, outcome, redact)
    assert tree is not None
    return tree


def offer_rows(episode: Transcript, redact: Redact = str) -> list[OfferRow]:
    """The candidates of each step."""
    return recorded_rows(episode, OUTCOME, redact)[1]


def test_the_tree_is_the_conversation() -> None:
    row = tree_row(EPISODE)
    tree = tree_from_row(row)
    answer = Message("tool", "You have it.", tool_call_id="call-3")
    assert row.system == SYSTEM.content
    system = Message("system", SYSTEM.content)
    assert tree.history(2) == (system, TASK, BOTH, *SEEN, TAKE, answer)
    assert [node.source for node in tree.nodes] == ["p", "p"]
    assert row.nodes[0].observation == "A mug.\nNo."


def test_another_candidate_may_be_the_last_action() -> None:
    row = tree_row(EPISODE, OUTCOME.model_copy(update={"action": DROP.text}))
    assert tree_from_row(row).node(2).step.reply == DROP


def test_an_action_of_the_agents_own_is_a_text() -> None:
    row = tree_row(EPISODE, OUTCOME.model_copy(update={"action": "I stop."}))
    assert row.nodes[1].reply is None
    assert row.nodes[1].action == "I stop."


def test_offers_have_the_depths_of_their_actions() -> None:
    offers = offer_rows(EPISODE)
    assert [(row.depth, row.taken) for row in offers] == [(1, BOTH.text), (2, TAKE.text)]


def test_every_text_of_a_call_is_redacted() -> None:
    row = tree_row(EPISODE, OUTCOME, lambda text: text.replace("secret", "***"))
    assert "secret" not in row.model_dump_json()
    assert "secret" in "".join(texts_of(EPISODE, OUTCOME))


def test_ids_of_calls_are_numbers_and_not_the_clients_text() -> None:
    call = ToolCall("look", "{}", "john@example.com")
    look = Message("assistant", "", (call,))
    seen = Message("tool", "A mug.", tool_call_id=call.id)
    episode = Transcript((TASK, look, seen), (offer(1, look), offer(3, TAKE)))
    row = tree_row(episode)
    assert call.id not in row.model_dump_json()
    *_, asked, answered, took, _ = tree_from_row(row).history(2)
    assert asked.tool_calls[0].id == answered.tool_call_id == "call-1"
    assert took.tool_calls[0].id == "call-2"


@pytest.mark.parametrize(("ranked", "scored"), [(False, [0.5, 0.5, 0.5]), (True, [])])
def test_a_judges_scores_are_kept_and_its_places_are_not(ranked: bool, scored: list[float]) -> None:
    judged = {"judge": True, "ranked": ranked}
    offers = tuple(one.model_copy(update=judged) for one in EPISODE.offers)
    row = tree_row(Transcript(EPISODE.messages, offers))
    scores = [q for column in row.values.values() for q in column if q is not None]
    assert sorted(scores) == scored
    assert all(node.tried or not node.observation for node in row.nodes)


def test_an_episode_without_a_task_is_no_record() -> None:
    greeting = Transcript((BOTH, *SEEN), (offer(3, TAKE),))
    with pytest.raises(NotRecordableError, match="task"):
        tree_row(greeting)


def test_what_was_drawn_is_kept_with_the_greedy_reply() -> None:
    counts = {TAKE.text: 1, DROP.text: 3}
    told = offer(5, TAKE, DROP).model_copy(update={"counts": counts, "greedy": DROP.text})
    episode = Transcript(EPISODE.messages, (EPISODE.offers[0], told))
    first, second = tree_row(episode).nodes
    assert first.drawn == ()
    assert [(one.action, one.count, one.greedy) for one in second.drawn] == [
        (TAKE.text, 1, False),
        (DROP.text, 3, True),
    ]
    assert tree_from_row(tree_row(episode)).node(2).step.drawn[1].message == DROP
    [_, offered] = offer_rows(episode)
    assert [one.greedy for one in offered.candidates] == [False, True]


def test_candidates_of_another_policy_are_no_draws() -> None:
    action = ThresholdActionRow(
        action="escalate", outcome="raised", policy="big", candidates=(DROP.text,), q_before=0.1,
        q_after=0.9,
    )  # fmt: skip
    counts = {TAKE.text: 2, DROP.text: 1}
    told = offer(5, TAKE, DROP).model_copy(update={"counts": counts, "actions": (action,)})
    row = tree_row(Transcript(EPISODE.messages, (EPISODE.offers[0], told)))
    assert [one.action for one in row.nodes[1].drawn] == [TAKE.text]


def test_a_judges_reason_is_redacted_like_what_it_quotes() -> None:
    verdict = Verdict({"safety": 3.0}, "it tells the secret")
    judged = offer(5, TAKE).model_copy(update={"verdicts": {TAKE.text: verdict}})
    episode = Transcript(EPISODE.messages, (EPISODE.offers[0], judged))
    assert verdict.reason in texts_of(episode, OUTCOME)
    *_, row = offer_rows(episode, lambda text: text.replace("secret", "***"))
    assert row.candidates[0].verdicts == {"safety": 3.0}
    assert row.candidates[0].judge_reason == "it tells the ***"
    assert OfferRow.model_validate_json(row.model_dump_json()) == row
