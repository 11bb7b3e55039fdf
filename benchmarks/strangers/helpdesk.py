"""A help desk with six tools and policies to obey, behind TRL's interface, with graded reward.

    qguide environment check benchmarks.strangers.helpdesk:HelpDesk

A ticket names an order, a customer and a complaint. The order says what the product is, which
decides the team; the customer's tier and the complaint together decide the remedy; the customer's
region decides the channel. What the desk does not say: a wrong remedy is taken like a right one.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from random import Random

from benchmarks.strangers.worlds import shared_out, world_and_number

CUSTOMERS = ("Mara Lind", "Otto Brandt", "Pia Sand", "Ruben Falk", "Selma Voss", "Tilo Hart", "Una Berg", "Viktor Roth")
PRODUCTS = ("kettle", "toaster", "lamp", "radio", "drill", "fan", "scale", "mixer")
COMPLAINTS = ("arrived broken", "came late", "has the wrong colour")
TIERS = ("basic", "silver", "gold")
REGIONS = ("north", "coast", "hills")
TEAMS = ("returns", "logistics", "repairs", "quality")
REMEDIES = ("refund", "replacement", "voucher", "repair")
CHANNELS = ("email", "phone", "letter")


@dataclass(frozen=True)
class Desk:
    """The secrets of one help desk.

    Attributes:
        tier, region: of each customer.
        team: for each product.
        channel: for each region.
        remedy: for each pair "complaint, tier".
        tickets: triples of customer, product and complaint, in the order of their numbers.
    """

    tier: dict[str, str]
    region: dict[str, str]
    team: dict[str, str]
    channel: dict[str, str]
    remedy: dict[str, str]
    tickets: tuple[tuple[str, str, str], ...]


def case(complaint: str, tier: str) -> str:
    """The pair of facts that decides the remedy."""
    return f"{complaint}, {tier}"


@lru_cache(maxsize=64)
def desk(world: int) -> Desk:
    """The help desk of a world."""
    chance = Random(f"desk {world}")
    tickets = list(product(CUSTOMERS, PRODUCTS, COMPLAINTS))
    cases = [case(complaint, tier) for complaint in COMPLAINTS for tier in TIERS]
    secrets = (
        shared_out(CUSTOMERS, TIERS, chance),
        shared_out(CUSTOMERS, REGIONS, chance),
        shared_out(PRODUCTS, TEAMS, chance),
        shared_out(REGIONS, CHANNELS, chance),
        shared_out(cases, REMEDIES, chance),
    )
    chance.shuffle(tickets)
    return Desk(*secrets, tuple(tickets))


def order_number(customer: str, thing: str) -> str:
    """The number of the order by which a customer bought a product."""
    return f"{40 + CUSTOMERS.index(customer)}{10 + PRODUCTS.index(thing)}"


class HelpDesk:
    """One ticket; the public methods are the tools."""

    system = (
        "You work at a help desk. Policies: find the order and the customer before you resolve a "
        "ticket. Assign a team before you resolve it. Notify the customer, then close the ticket."
    )

    def reset(self, *, seed: int = 0) -> str:
        """Open the ticket of that number."""
        world, number = world_and_number(seed)
        self._desk = desk(world)
        self._customer, self._product, self._complaint = self._desk.tickets[number % len(self._desk.tickets)]
        self._found, self._done = set[str](), dict[str, str]()
        self._obeyed, self.done = True, False
        order = order_number(self._customer, self._product)
        return f"Ticket: {self._customer} writes that order {order} {self._complaint}."

    def find_order(self, number: str) -> str:
        """Look up an order.

        Args:
            number: Number of the order.
        """
        _known(number, [order_number(self._customer, self._product)], "orders of this ticket")
        self._found.add("order")
        return f"Order {number} is a {self._product}."

    def find_customer(self, name: str) -> str:
        """Look up a customer.

        Args:
            name: First and last name.
        """
        _known(name, CUSTOMERS, "customers")
        if name == self._customer:
            self._found.add("customer")
        return f"{name} is a {self._desk.tier[name]} customer in the {self._desk.region[name]}."

    def assign(self, team: str) -> str:
        """Hand the ticket to a team.

        Args:
            team: returns, logistics, repairs or quality.
        """
        _known(team, TEAMS, "teams")
        if team != self._desk.team[self._product]:
            return f"The {team} team sends the ticket back."
        self._done["team"] = team
        return f"The {team} team takes the ticket."

    def resolve(self, remedy: str) -> str:
        """Settle the ticket; it can be done once.

        Args:
            remedy: refund, replacement, voucher or repair.
        """
        _known(remedy, REMEDIES, "remedies")
        if "remedy" in self._done:
            return "The ticket is resolved already."
        self._done["remedy"] = remedy
        self._obeyed = len(self._found) == 2 and "team" in self._done
        return f"The ticket is resolved by a {remedy}."

    def notify(self, channel: str) -> str:
        """Tell the customer; it can be done once.

        Args:
            channel: email, phone or letter.
        """
        _known(channel, CHANNELS, "channels")
        if "channel" in self._done:
            return "The customer knows already."
        self._done["channel"] = channel
        return f"The customer is told by {channel}."

    def close_ticket(self) -> str:
        """Close the ticket, which ends the work on it."""
        self.done = True
        return "The ticket is closed."

    def get_reward(self) -> float:
        """Team, remedy and channel count if they are right, and half without a closed ticket."""
        secrets = self._desk
        remedy = secrets.remedy[case(self._complaint, secrets.tier[self._customer])]
        channel = secrets.channel[secrets.region[self._customer]]
        worth = 0.3 * ("team" in self._done) + 0.3 * (self._done.get("channel") == channel)
        if self._done.get("remedy") == remedy:
            worth += 0.4 if self._obeyed else 0.1
        return worth if self.done else worth / 2


def _known(value: str, values: tuple[str, ...] | list[str], name: str) -> None:
    """Refuse a value that there is not."""
    if value not in values:
        raise ValueError(f"{value!r} is none of the {name}: {', '.join(values)}")
