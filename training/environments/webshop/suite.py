"""WebShop's tasks: the goals of a catalogue."""

from collections.abc import Sequence
from typing import Final

from training.environment import Task
from training.environments.webshop.catalogue import Catalogue, Goal, Product
from training.environments.webshop.episode import ShoppingEpisode
from training.environments.webshop.pages import BUY, NEXT, PER_PAGE
from training.environments.webshop.reward import purchase_reward
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
        """A search, the first product found that earns the whole reward, its options, and Buy Now.

        The goal's own product may stand below others that fit as well, and nothing that an agent
        sees tells it from them.
        """
        goal = self._goals[task.id]
        query, page, product = self._find(goal)
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

    def _find(self, goal: Goal) -> tuple[str, int, Product]:
        """Words that find a product that fits on the first pages, its page, and the product."""
        wanted = self._catalogue.by_id[goal.product_id]
        for query in (" ".join((*goal.attributes, wanted.query)), wanted.name):
            shown = self._catalogue.search(query)[: _MOST_PAGES * PER_PAGE]
            for place, product in enumerate(shown):
                if self._fits(product, goal, wanted):
                    return query, place // PER_PAGE + 1, product
        return wanted.id, 1, wanted

    def _fits(self, product: Product, goal: Goal, wanted: Product) -> bool:
        """True if the goal's options can be chosen, and the purchase earns the whole reward."""
        values = {value for values in product.options.values() for value in values}
        chosen = [*goal.options]
        return values.issuperset(chosen) and purchase_reward(product, goal, wanted, chosen) == 1.0

    def close(self) -> None:
        """Do nothing: there are no processes to stop."""
