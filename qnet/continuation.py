"""Continuation of an episode: which messages of a request are new.

Each request carries its whole history, which agents change: the time of day in a system prompt, a reminder that is
taken out again, old results that are cut, a head that is left out. So a history continues an episode if the agent's
actions stand where they stood, whatever the other texts are (docs/decisions/same-actions-same-places.md).
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Self

from qguide.qnet.types import History, Message

_NEWEST: Final = 4
"""Actions that are compared: older ones are cut by agents, too, and a state has a constant size."""


@dataclass(frozen=True, slots=True)
class KnownState:
    """Of the latest state of an episode, what tells if another one follows it.

    Attributes:
        state: `digest` of its history.
        actions: number of the agent's actions there.
        newest: hashes of the newest of them, oldest first.
        answered: hash of the action that was chosen there.
    """

    state: str = ""
    actions: int = 0
    newest: tuple[str, ...] = ()
    answered: str = ""

    @classmethod
    def of(cls, history: History, answered: str) -> Self:
        """The state of a history, and the text of the action that was chosen in it."""
        said = [_hash(message.text) for message in history if message.role == "assistant"]
        return cls(digest(history), len(said), tuple(said[-_NEWEST:]), _hash(answered))

    def is_state_of(self, history: History) -> bool:
        """True if not a word of the history differs."""
        return digest(history) == self.state

    def news(self, history: History) -> int | None:
        """Number of messages before the first new one; None if the history does not continue this state.

        All of them are known if the same state is asked about again. Otherwise an action is new, and something follows
        it. Where no earlier action tells that the two are one, it has to be the one that was chosen, or all before it
        as it was; where older ones are left out, the one that was chosen.
        """
        places = [at for at, message in enumerate(history) if message.role == "assistant"]
        if len(places) == self.actions and self.is_state_of(history):
            return len(history)
        said = [_hash(history[at].text) for at in places]
        for before in (self.actions, *range(len(said) - 1, _NEWEST - 1, -1)):
            if before >= len(said) or said[max(0, before - _NEWEST) : before] != list(self.newest):
                continue
            place: int = places[before]
            stood = before == self.actions
            unchanged = stood and (self.actions > 0 or self.is_state_of(history[:place]))
            if (unchanged or said[before] == self.answered) and place + 1 < len(history):
                return place
        return None


def digest(history: History) -> str:
    """Hash of a state: the texts of its messages and their other content."""
    hashed = sha256()
    for message in history:
        hashed.update(_read(message))
    unread = [(at, *parts) for at, message in enumerate(history) if (parts := message.unread)]
    return sha256(f"{hashed.hexdigest()} {unread!r}".encode()).hexdigest() if unread else hashed.hexdigest()


def _read(message: Message) -> bytes:
    """All that equality of messages compares; not by `repr`, which takes 10 ms for a megabyte."""
    if message.tool_calls:
        return repr(message.key).encode()
    content = message.content
    return f"{message.role} {len(content)} {content}".encode(errors="surrogatepass")


def _hash(text: str) -> str:
    """Hash of an action, white space aside."""
    return sha256(" ".join(text.split()).encode(errors="surrogatepass")).hexdigest()[:16]
