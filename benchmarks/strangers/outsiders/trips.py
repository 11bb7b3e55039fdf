"""Mails of travellers in free prose, behind Gymnasium's interface; replies are prose with a tag.

    qguide environment check benchmarks.strangers.outsiders.trips:Trips --set reply=text \
        --harmless "[WAIT]"

What has happened and the fare together decide which offer a traveller takes; half of them leave
when they have refused one, the others after two. The fee is waived where as many hours are left as
a limit of the line, and charged otherwise. All is told in several wordings; the outcome is binary.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from random import Random
from typing import Any

from benchmarks.strangers.mock_policy import Mistake, MockPolicy, Option, Weights, beliefs, named
from benchmarks.strangers.worlds import in_turns, shared_out, world_and_number
from qguide.qnet.types import History, Message

NAMES = ("Adler", "Bruun", "Costa", "Dubois", "Eriksen", "Fabri", "Gallo", "Horvat")
REASONS = {
    "strike": ("Your drivers have walked out", "I hear that nobody drives on the day of the strike"),
    "illness": ("The doctor keeps me in bed", "My daughter has come down with a fever"),
    "weather": ("The pass is closed by snow", "The radio says that the storm stops all traffic"),
    "missed": ("My first coach was late and the second did not wait", "I came to the stop and saw you leave"),
}
FARES = {
    "saver": ("the cheapest ticket we sell", "a saver ticket"),
    "standard": ("an ordinary ticket", "a ticket at the full price"),
    "flex": ("a ticket that may be changed", "a flex ticket"),
}
HOURS = ("I have {} hours until I should leave", "The coach is to go {} hours from now", "It starts in {} hours")
OTHER = (
    "I travel with two suitcases and a bicycle",
    "Last year all went well",
    "My sister is waiting for me",
    "I do not like to write such mails",
    "The seat by the window was lovely",
)
ACCEPTED = ("That suits me well", "Thank you, I gladly take it", "Good, let us do that")
REFUSED = ("That is of no use to me", "I had hoped for something else", "No, thank you")
OFFERS = ("refund", "voucher", "rebooking", "taxi")
FEES = ("waived", "charged")
LIMITS = (12, 24, 36)
MOST_ACTIONS = 8
SYSTEM = (
    "You answer travellers of a coach line whose trip has gone wrong. Read the mail, look up the ticket, "
    "and ask for the time of departure. Make an offer: refund, voucher, rebooking or taxi. Some leave when "
    "they have refused one, all after two. Set the fee, waived or charged, and close. Never make an offer "
    "before you have looked up the ticket. Write a sentence or two, and end with one tag: [READ], [TICKET], "
    "[ASK], [OFFER X], [FEE X], [WAIT] or [CLOSE]."
)
_TAGGED = re.compile(r"\[([A-Z]+) ?([a-z]*)\]\s*$")


@dataclass(frozen=True)
class Line:
    """Facts of one coach line.

    Attributes:
        offer: for each pair "reason, fare".
        limit: least hours to departure for which the fee is waived.
        mails: sender, reason and wording, in the order of their numbers.
    """

    offer: dict[str, str]
    limit: int
    mails: tuple[tuple[tuple[str, str], int], ...]


@lru_cache(maxsize=64)
def line(world: int) -> Line:
    """The coach line of a world."""
    chance = Random(f"line {world}")
    offer = shared_out([f"{reason}, {fare}" for reason in REASONS for fare in FARES], OFFERS, chance)
    return Line(offer, chance.choice(LIMITS), tuple(in_turns(list(product(NAMES, REASONS)), 3, chance)))


class Trips:
    """One mail; see Gymnasium's `Env`."""

    system = SYSTEM

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Bring the mail of that number."""
        world, number = world_and_number(seed or 0)
        facts, chance = line(world), Random(f"mail {seed}")
        (self.name, reason), turn = facts.mails[number % len(facts.mails)]
        fare, hours = chance.choice(tuple(FARES)), chance.randrange(2, 47)
        self.offer, self.fee = facts.offer[f"{reason}, {fare}"], FEES[hours < facts.limit]
        sentences = [REASONS[reason][turn % 2], *chance.sample(OTHER, 2)]
        chance.shuffle(sentences)
        self.mail, self.ticket = ". ".join(sentences), chance.choice(FARES[fare])
        self.time = chance.choice(HOURS).format(hours)
        self.thanks, self.regret = chance.choice(ACCEPTED), chance.choice(REFUSED)
        self.looked, self.rash, self.accepted, self.settled = False, False, False, ""
        self.patience, self.taken = chance.choice((1, 2)), 0
        return f"A mail has come, number {number}, from {self.name}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action; who closes with an offer accepted and the right fee has succeeded."""
        self.taken += 1
        said = _TAGGED.search(action)
        answer = self._act(*said.groups()) if said else ""
        over = self.patience == 0 or answer == "The mail is closed."
        won = over and self.accepted and not self.rash and self.settled == self.fee
        cut = not over and self.taken == MOST_ACTIONS
        return answer or "There is no such tag.", float(won), over, cut, {"valid": bool(answer)}

    def _act(self, verb: str, value: str) -> str:
        """Answer to an action; "" if it means nothing."""
        match verb, value:
            case "READ", "":
                return f"{self.mail}. Yours, {self.name}"
            case "TICKET", "":
                self.looked = True
                return f"{self.name} has {self.ticket}."
            case "ASK", "":
                return f"{self.name} writes: {self.time}."
            case "OFFER", _ if value in OFFERS:
                self.rash = self.rash or not self.looked
                self.accepted = self.accepted or value == self.offer
                self.patience -= not self.accepted
                return f"{self.name} writes: {self.thanks if self.accepted else self.regret}."
            case "FEE", _ if value in FEES:
                self.settled = self.settled or value
                return f"The fee is {self.settled}."
            case (("WAIT" | "CLOSE"), ""):
                return "You wait." if verb == "WAIT" else "The mail is closed."
        return ""


def policy(world: int = 0) -> MockPolicy:
    """The mock that answers the travellers of a line."""
    return MockPolicy("trips-mock", _Beliefs(world).options)


def _tag(prose: str, tag: str, weight: float, mistake: Mistake = "") -> Option:
    return Option(Message("assistant", f"{prose} [{tag}]"), weight, mistake)


class _Beliefs:
    """Shares by which the mock guesses what holds, and a limit of its own."""

    def __init__(self, world: int) -> None:
        facts, chance = line(world), Random(f"line mock {world}")
        self._offer = beliefs(facts.offer, OFFERS, chance)
        self._limit = chance.choice(LIMITS)

    def options(self, history: History) -> list[Option]:
        """The replies in a state."""
        turns = [message for message in history if message.role != "system"][1:]
        told = "\n".join(message.content for message in turns[1::2])
        replies = " ".join(message.content for message in turns[::2])
        reason, fare = named(REASONS, told), named(FARES, told)
        hours = re.search(r"(\d+) hours", told)
        accepted, settled = any(each in told for each in ACCEPTED), "The fee is" in told
        ready = accepted and settled
        found = [
            Option(Message("assistant", "I am sorry to hear that, and shall see to it."), 0.04, "malformed"),
            _tag("One moment, please.", "WAIT", 0.03, "skip"),
            _tag("I wish you a good trip.", "CLOSE", 0.8 if ready else 0.03, "" if ready else "stop"),
            _tag("Let me see what has happened.", "READ", 0.04 if reason else 0.6, "repeat" if reason else ""),
            _tag("Let me look at your ticket.", "TICKET", 0.04 if fare else 0.4, "repeat" if fare else ""),
            _tag("When is it that you leave?", "ASK", 0.04 if hours else 0.4, "repeat" if hours else ""),
        ]
        if not accepted:
            tried = {offer for offer in OFFERS if f"[OFFER {offer}]" in replies}
            found += self._offers(self._offer.get(f"{reason}, {fare}"), fare, tried)
        if not settled:
            found += self._fees(int(hours[1]) if hours else None)
        return found

    def _offers(self, shares: Weights | None, fare: str, tried: set[str]) -> Iterator[Option]:
        kind: Mistake = "rule" if not fare else "guess" if shares else "skip"
        for offer in OFFERS:
            weight = 0.6 * shares[offer] if shares else 0.06 / len(OFFERS)
            again = 0.2 if offer in tried else 1.0
            prose = f"I am sorry for the trouble, and offer you a {offer}."
            yield _tag(prose, f"OFFER {offer}", weight * again, "repeat" if offer in tried else kind)

    def _fees(self, hours: int | None) -> Iterator[Option]:
        likely = "" if hours is None else FEES[hours < self._limit]
        for fee in FEES:
            weight = 0.04 if hours is None else 0.35 if fee == likely else 0.15
            yield _tag(f"The fee for the change is {fee}.", f"FEE {fee}", weight, "guess" if likely else "skip")
