"""WebShop's tasks: the goals of a catalogue."""

from collections.abc import Sequence
from typing import Final

from training.environment import Task
from training.environments.webshop.catalogue import Catalogue, Goal, Product
from training.environments.webshop.episode import ShoppingEpisode
from training.environments.webshop.pages import BUY, NEXT, PER_PAGE
from training.trajectory import react_reply

_MOST_PAGES: Final = 3


class ShoppingSuite:
    """See `training.environment.GoldSuite`."""

    def __init__(
        self, name: str, catalogue: Catalogue, goals: Sequence[Goal], *, turns: int
    ) -> None:
        """Prepare the tasks.

        Args:
            name: of the suite, in results.
            catalogue: the shop.
            goals: with distinct ids, of its products.
            turns: actions after which an episode ends.
        """
        self.name = name
        self.tasks: Sequence[Task] = [catalogue.task_of(goal) for goal in goals]
        self._catalogue = catalogue
        self._goals = {goal.id: goal for goal in goals}
        self._turns = turns

    def make(self, task: Task) -> ShoppingEpisode:
        """A fresh, single-use episode of `task`."""
        return ShoppingEpisode(self._catalogue, self._goals[task.id], self._turns)

    def gold_replies(self, task: Task) -> list[str]:
        """A search that finds the product, its options, and the purchase."""
        goal = self._goals[task.id]
        product = self._catalogue.by_id[goal.product_id]
        query, page = self._query(goal, product)
        clicks = [*[NEXT] * (page - 1), product.id, *goal.options, BUY]
        thoughts = [
            *["It is not on this page."] * (page - 1),
            "This one fits.",
            *[f"It should be {option}." for option in goal.options],
            "This is what I need.",
        ]
        return [
            react_reply("I search for it.", f"search[{query}]"),
            *(
                react_reply(thought, f"click[{button}]")
                for thought, button in zip(thoughts, clicks, strict=True)
            ),
        ]

    def _query(self, goal: Goal, product: Product) -> tuple[str, int]:
        """Words of the goal that find the product on the first pages, or else its name."""
        for query in (" ".join((*goal.attributes, product.query)), product.name):
            found = self._catalogue.search(query)
            if product in found and (page := found.index(product) // PER_PAGE + 1) <= _MOST_PAGES:
                return query, page
        return product.id, 1

    def close(self) -> None:
        """Do nothing: there are no processes to stop."""
