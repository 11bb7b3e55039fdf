"""Step records of an episode become its transcript again."""

from dataclasses import replace

import pytest

from qguide.qnet.types import History, HistoryWindow, Message, ToolCall
from qguide.server.episodes.state import Offer, ServedEpisode, Transcript, merged, read_transcript

TASK = Message("user", "Find the mug.", wire={"role": "user", "content": "large"})
LOOK = Message("assistant", "", (ToolCall("look", "{}", "call-1"),))
SEEN = Message("tool", "A mug.", tool_call_id="call-1")


def offer(at: int, chosen: str, **more: object) -> Offer:
    """One candidate, which was chosen."""
    return Offer(at=at, q_values={chosen: 0.5}, chosen=chosen, q_model="q@1").model_copy(update=more)


def recorded(*steps: tuple[History, Offer]) -> tuple[ServedEpisode, Transcript]:
    """The episode after these steps, and its transcript."""
    episode, rows = ServedEpisode(id="e"), []
    for history, offered in steps:
        changed = episode.after(history, offered, keep=True)
        episode = changed.episode
        rows += [changed.record] if changed.record else []
    assert episode.record_bytes == sum(map(len, rows))
    return episode, read_transcript(rows)


def test_each_message_is_kept_once_and_without_its_wire_format() -> None:
    first, second = offer(1, "look"), offer(3, "take")
    episode, transcript = recorded(((TASK,), first), ((TASK, LOOK, SEEN), second))
    assert transcript == Transcript((TASK, LOOK, SEEN), (first, second))
    assert transcript.messages[0].wire is None
    assert transcript.messages[1].tool_calls[0].id == "call-1"
    assert (episode.steps, episode.records, episode.messages) == (2, 2, 3)


def test_a_window_of_before_that_tells_no_read_tokens_is_read() -> None:
    window = HistoryWindow(read_messages=3, read_tokens=9, left_out_messages=2, left_out_tokens=40)
    _, kept = recorded(((TASK,), offer(1, "look", window=window)))
    assert kept.offers[0].window == window
    earlier = offer(1, "look", window=window).to_json().replace(b',"read_tokens":9', b"")
    assert Offer.model_validate_json(earlier).window == replace(window, read_tokens=0)


def test_each_offer_has_the_depth_of_the_action_after_it() -> None:
    shown = (TASK, LOOK, SEEN, SEEN, LOOK, SEEN)
    offers = tuple(offer(at, "look") for at in (1, 4, 6))
    depths = [depth for depth, _ in Transcript(shown, offers).steps]
    assert depths == [sum(said.role == "assistant" for said in shown[: one.at]) + 1 for one in offers] == [1, 2, 3]


def test_offers_of_one_state_are_one() -> None:
    drawn = offer(1, "look", counts={"look": 1}, completion_tokens=3, duration_ms=1.0)
    again = Offer(at=1, q_values={"look": None, "go": 0.25}, chosen="go", q_model="q@2", counts={"look": 1})
    episode, transcript = recorded(((TASK,), drawn), ((TASK,), again))
    [one] = transcript.offers
    assert (episode.steps, episode.records) == (1, 2)
    assert one.q_values == {"look": 0.5, "go": 0.25}
    assert one.counts == {"look": 2}
    assert (one.chosen, one.q_model, one.completion_tokens, one.duration_ms) == ("go", "q@2", 3, 1)


def test_a_later_value_of_a_candidate_counts() -> None:
    assert merged([offer(1, "a"), offer(1, "a", q_values={"a": 0.75})]).q_values == {"a": 0.75}


def test_each_message_is_kept_as_it_was_when_the_agent_acted_on_it() -> None:
    system, reminded = Message("system", "It is 9:00."), Message("user", "Find the mug. <reminder>Be quick.</reminder>")
    later, taken = Message("system", "It is 9:01."), Message("assistant", "take")
    _, transcript = recorded(
        ((system, reminded), offer(2, "look")),
        ((later, TASK, Message("assistant", "look"), SEEN), offer(4, "take")),
        ((TASK, Message("assistant", "look"), replace(SEEN, content="[cleared]"), taken, SEEN), offer(6, "end")),
    )
    assert [one.content for one in transcript.messages] == [
        *(system.content, reminded.content, "look", "A mug.", "take", "A mug.")
    ]
    assert [depth for depth, _ in transcript.steps] == [1, 2, 3]
    assert [one.chosen for one in transcript.offers] == ["look", "take", "end"]


@pytest.mark.parametrize(
    "history",
    [
        (Message("user", "Another task."), LOOK, SEEN),
        (TASK, SEEN, LOOK),
        (TASK, LOOK),
        (Message("user", "Summary."),),
        (),
    ],
)
def test_a_history_that_does_not_continue_drops_the_records(history: History) -> None:
    episode, _ = recorded(((TASK,), offer(1, "look")))
    changed = episode.after(history, offer(3, "take"), keep=True)
    assert (changed.record, changed.episode.records, changed.episode.record_bytes) == (None, 0, 0)
    assert "the history of step 2 does not continue that of step 1" in changed.episode.broken
    later = changed.episode.after((TASK, LOOK, SEEN), offer(3, "take"), keep=True)
    assert (later.record, later.episode.steps) == (None, 3)
