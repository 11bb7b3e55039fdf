"""Actions where the best Q of a step is below a threshold: refine, escalate, stop."""

import json
from typing import Any

import pytest

from qguide.qnet.decision.decision import Decision, Guidance
from qguide.qnet.decision.guide import guide
from qguide.qnet.decision.threshold import Threshold, noted_proposals, with_note
from qguide.qnet.errors import UpstreamError
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.types import Candidate, Message, Sampling, ThresholdAction, ToolCall, Verdict
from qguide.qnet.work import TokenUsage
from tests.support.listed_models import Drawn, Known

TASK = (Message("system", "You act."), Message("user", "Find the mug."))
Q_OF = {"look": 0.2, "wait": 0.1, "take": 0.6, "fly": 0.9, "sing": 0.05}


async def act(
    policy: Drawn,
    *actions: ThresholdAction,
    below: float = 0.5,
    scorer: Known | None = None,
    escalation: Drawn | None = None,
    m: int = 2,
    **more: Any,
) -> Decision:
    threshold = Threshold(below, actions, **more)
    guidance = Guidance(m, Sampling(), threshold=threshold)
    return await guide(TASK, policy, scorer or Known(Q_OF), guidance, escalation=escalation)


async def test_refine_draws_again_and_tells_the_policy_why() -> None:
    policy, scorer = Drawn(["look", "wait", "take"], prompt_tokens=10), Known(Q_OF)
    decision = await act(policy, "refine", scorer=scorer)
    assert decision.action.content == "take"
    assert decision.q_values == (0.2, 0.1, 0.6)
    below = decision.below_threshold
    assert below is not None
    assert (below.below, below.best_q, below.stopped) == (0.5, 0.2, False)
    [taken] = below.taken
    assert (taken.action, taken.outcome, taken.candidates) == ("refine", "raised", (2,))
    assert taken.best_q == 0.6
    told = policy.histories[1][-1]
    assert told.role == "user"
    assert told.content.startswith(TASK[-1].content)
    assert '"look"' in told.content
    assert '"wait"' in told.content
    assert [request.history for request in scorer.requests] == [TASK, TASK]


async def test_the_tokens_of_further_draws_are_counted_and_told_apart() -> None:
    decision = await act(Drawn(["look", "wait", "take"], prompt_tokens=10), "refine")
    assert (decision.usage.prompt_tokens, decision.usage.completion_tokens) == (20, 3)
    assert decision.usage.below_threshold == TokenUsage(10, 1)
    assert decision.usage.scored_tokens == 3
    assert decision.draws_saved == 0


async def test_nothing_is_done_where_the_best_q_is_not_below() -> None:
    policy = Drawn(["look", "take"], prompt_tokens=10)
    decision = await act(policy, "refine", below=0.6)
    assert decision.below_threshold is None
    assert (len(policy.histories), decision.warnings) == (1, ())


async def test_escalate_draws_from_another_policy_after_the_same_history() -> None:
    other = Drawn(["fly", "take"], prompt_tokens=10)
    decision = await act(Drawn(["look", "wait"], prompt_tokens=10), "escalate", escalation=other, num_candidates=2)
    assert decision.action.content == "fly"
    assert other.histories == [TASK]
    assert decision.below_threshold is not None
    assert decision.below_threshold.taken[0].candidates == (2, 3)


async def test_actions_follow_each_other_until_the_best_q_is_not_below() -> None:
    policy, other = Drawn(["look", "wait", "sing"], prompt_tokens=10), Drawn(["take"], prompt_tokens=10)
    decision = await act(policy, "refine", "escalate", "stop", escalation=other)
    assert decision.action.content == "take"
    assert decision.below_threshold is not None
    taken = decision.below_threshold.taken
    assert [(t.action, t.outcome) for t in taken] == [("refine", "still_below"), ("escalate", "raised")]
    assert [t.best_q for t in taken] == [0.2, 0.6]


async def test_stop_takes_none() -> None:
    decision = await act(Drawn(["look", "wait", "sing"], prompt_tokens=10), "refine", "stop")
    assert decision.below_threshold is not None
    assert decision.below_threshold.stopped
    assert decision.below_threshold.taken[-1].outcome == "stopped"
    assert "refine (still below), stop (stopped)" in decision.warnings[0]


async def test_an_action_that_fails_does_not_fail_the_step() -> None:
    other = Drawn([], prompt_tokens=10, error=UpstreamError("upstream strong answered with 500"))
    decision = await act(Drawn(["look", "wait"], prompt_tokens=10), "escalate", escalation=other)
    assert decision.action.content == "look"
    assert decision.below_threshold is not None
    assert decision.below_threshold.taken[0].outcome == "failed"
    assert decision.warnings[1] == "escalate failed: upstream strong answered with 500"


async def test_an_unexpected_failure_is_not_told_to_callers() -> None:
    other = Drawn([], prompt_tokens=10, error=RuntimeError("a secret"))
    decision = await act(Drawn(["look", "wait"], prompt_tokens=10), "escalate", escalation=other)
    assert decision.warnings[1] == "escalate failed: an internal error"


async def test_candidates_that_cannot_be_scored_are_left_out_but_paid_for() -> None:
    decision = await act(Drawn(["look", "wait", "unknown"], prompt_tokens=10), "refine")
    assert [candidate.message.content for candidate in decision.candidates] == ["look", "wait"]
    assert decision.guided
    assert decision.usage.below_threshold == TokenUsage(10, 1)
    assert decision.usage.completion_tokens == 3


async def test_equal_candidates_are_scored_where_a_threshold_is_set() -> None:
    decision = await act(Drawn(["look", "look", "take"], prompt_tokens=10), "refine")
    assert decision.q_values == (0.2, 0.2, 0.6)
    assert (decision.action.content, decision.guided) == ("take", True)


async def test_a_candidate_that_was_drawn_before_is_not_scored_again() -> None:
    scorer = Known(Q_OF)
    decision = await act(Drawn(["look", "wait", "look"], prompt_tokens=10), "refine", scorer=scorer)
    assert decision.q_values == (0.2, 0.1, 0.2)
    assert len(scorer.requests) == 1


async def test_nothing_is_done_without_a_q() -> None:
    policy = Drawn(["look", "unknown", "take"], prompt_tokens=10)
    threshold = Threshold(0.5, ("refine", "stop"))
    guidance = Guidance(2, Sampling(), fallback="first", threshold=threshold)
    decision = await guide(TASK, policy, Known(Q_OF), guidance)
    assert (decision.reason, decision.below_threshold) == ("fallback", None)
    assert len(policy.histories) == 1


async def test_the_scripted_policy_needs_no_note() -> None:
    guidance = Guidance(2, Sampling(), threshold=Threshold(2.0, ("refine",), 2))
    q_of = {reply.message.content: 1.0 for reply in await _replies()}
    decision = await guide(TASK, ScriptedPolicy(), Known(q_of), guidance)
    assert len(decision.candidates) == 4


async def _replies() -> list[Candidate]:
    return await ScriptedPolicy().sample(TASK, n=3, sampling=Sampling())


CALL = Message("assistant", "", (ToolCall("look", '{"at": "desk"}', "1"),))
RESULT = Message("tool", "A mug.", tool_call_id="1")
POOR = (Message("assistant", "look"), Message("assistant", "look"), CALL)


def test_the_note_tells_each_candidate_once_tool_calls_included() -> None:
    text = with_note(TASK, POOR, {})[-1].content
    assert noted_proposals(text) == 2
    assert text.count('"look"') == 1
    assert json_line(text, 1) == 'Action: look({"at": "desk"})'


def json_line(text: str, index: int) -> str:
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    said: str = json.loads(lines[index].removeprefix("- "))
    return said


def test_behind_a_tools_result_the_note_is_a_message_of_its_own() -> None:
    history = (*TASK, CALL, RESULT)
    noted = with_note(history, POOR, {})
    assert noted[:-1] == history
    assert noted[-1].role == "user"


def test_a_users_parts_stay_and_the_note_is_one_more() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    text = {"type": "text", "text": "Find the mug."}
    wire = {"role": "user", "name": "ann", "content": [text, image]}
    last = with_note((Message("user", "Find the mug.", wire=wire),), POOR, {})[-1]
    assert last.wire is not None
    assert last.wire["name"] == "ann"
    assert last.wire["content"][:2] == [text, image]
    assert noted_proposals(last.wire["content"][2]["text"]) == 2
    assert last.content.startswith("Find the mug.")


def test_a_users_text_in_the_wire_format_is_continued_as_well() -> None:
    wire = {"role": "user", "content": "Find the mug."}
    last = with_note((Message("user", "Find the mug.", wire=wire),), POOR, {})[-1]
    assert last.wire == {"role": "user", "content": last.content}


def test_a_beginning_of_the_assistants_turn_stays_last() -> None:
    begun = Message("assistant", "Action: ")
    noted = with_note((*TASK, begun), POOR, {})
    assert noted[-1] == begun
    assert noted_proposals(noted[-2].content) == 2


@pytest.mark.parametrize("text", ["no note", "- a list\n- of two"])
def test_a_text_without_a_note_tells_of_no_proposals(text: str) -> None:
    assert noted_proposals(text) == 0


def test_a_long_proposal_is_shortened() -> None:
    text = with_note(TASK, (Message("assistant", "x" * 10_000),), {})[-1].content
    assert len(text) < 3_000


def test_the_note_has_the_reason_of_a_judge_on_the_proposals_line() -> None:
    verdicts = {POOR[0]: Verdict({"progress": 2.0}, 'it saw the "desk" before'), CALL: Verdict({"progress": 1.0})}
    text = with_note(TASK, POOR, verdicts)[-1].content
    assert '- "look"; the reason: "it saw the \\"desk\\" before"\n' in text
    assert noted_proposals(text) == 2
    assert text.count("the reason") == 1, "a judge need not give one"
