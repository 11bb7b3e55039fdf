"""Batches of score requests, generated so that their prefixes collide often."""

from hypothesis import strategies as st

from qguide.qnet.types import History, Message, ScoreRequest

INSTRUCTION = Message("user", "go to desk take mug from shelf open Action : you see " * 2)
FRAGMENTS = ("go", " to", " desk", "de", "sk", " ")
"""Whole words, parts of words and a space: where a turn ends says nothing about the tokens."""

texts = st.lists(st.sampled_from(FRAGMENTS), max_size=10).map("".join)


@st.composite
def candidates(draw: st.DrawFn) -> tuple[Message, ...]:
    """Up to five candidates: of any length, some equal, some the beginnings of others."""
    said = draw(st.lists(texts, min_size=1, max_size=3))
    whole = draw(st.sampled_from(said))
    if draw(st.booleans()):
        said.append(whole[: draw(st.integers(0, len(whole)))])
    if draw(st.booleans()):
        said.append(whole)
    return tuple(Message("assistant", text) for text in draw(st.permutations(said)))


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Histories from the bare generation prompt to a few turns, most with the same instruction."""
    if draw(st.integers(0, 5)) == 0:
        return ()
    turns = [draw(st.sampled_from([INSTRUCTION, INSTRUCTION, Message("user", "go")]))]
    for _ in range(draw(st.integers(0, 2))):
        turns += [Message("assistant", draw(texts)), Message("user", draw(texts))]
    return tuple(turns)


@st.composite
def requests(draw: st.DrawFn, history: History) -> ScoreRequest:
    """Candidates after a history, each with an answer: equal candidates may be answered apart."""
    said = draw(candidates())
    answers = tuple((Message("user", draw(texts)),) for _ in said)
    return ScoreRequest(history, said, observations=answers)


@st.composite
def batches(draw: st.DrawFn) -> list[list[ScoreRequest]]:
    """Steps of many sessions: each batch continues some of the one before and starts others."""
    found: list[list[ScoreRequest]] = []
    for _ in range(draw(st.integers(1, 3))):
        new = histories().flatmap(requests)
        batch = draw(st.lists(new, min_size=1, max_size=2))
        for old in found[-1][:3] if found else []:
            taken = draw(st.integers(0, len(old.candidates) - 1))
            goes_on = draw(st.booleans())
            answer = old.observations[taken] if goes_on else (Message("user", draw(texts)),)
            history = (*old.history, old.candidates[taken], *answer)
            batch.append(draw(requests(history)))
        found.append(draw(st.permutations(batch)))
    return found
