"""WebShop as the jobs know it: buy the product that an instruction describes (Yao et al., 2022).

[environment]
name = "webshop"
products = "data/items_shuffle.json"          # without these three: a generated catalogue
attributes = "data/items_ins_v2.json"
instructions = "data/items_human_ins.json"
slice = "0:500"                               # WebShop's test split
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from qguide.qnet.types import TaskMarker
from qguide.training.environment import EnvironmentBundle, NumberedConfig, Task
from qguide.training.environments.webshop.catalogue import Catalogue, Product, ShoppingGoal
from qguide.training.environments.webshop.episode import (
    BUY,
    INSTRUCTION_OPENING,
    INVALID,
    NEXT,
    PER_PAGE,
    PREVIOUS,
    ShoppingEpisode,
    purchase_reward,
)
from qguide.training.environments.webshop.files import read_goals, read_products
from qguide.training.environments.webshop.generated import CATALOGUES, generated_goal, generated_products
from qguide.training.trajectory import ChatFormat, react_reply

_MOST_PAGES: Final = 3


class ShoppingSuite:
    """See `qguide.training.environment.GoldSuite`."""

    def __init__(self, name: str, catalogue: Catalogue, goals: Sequence[ShoppingGoal], *, turns: int) -> None:
        self.name = name
        self.tasks: Sequence[Task] = [catalogue.task_of(goal) for goal in goals]
        self._catalogue = catalogue
        self._goals = {goal.id: goal for goal in goals}
        self._turns = turns

    def make(self, task: Task) -> ShoppingEpisode:
        """A fresh, single-use episode of `task`."""
        return ShoppingEpisode(self._catalogue, self._goals[task.id], self._turns)

    def gold_replies(self, task: Task) -> list[str]:
        """A search, a walk through its results to the first that earns the whole reward, and Buy.

        The goal's own product may stand below others that fit as well, and nothing that an agent
        sees tells it from them. On the way, products are opened that fit by what the results show,
        as long as turns are left, and are left again for the options that they do not have.
        A thought names the product that is opened: a small policy copies its id twice, not once.
        """
        goal = self._goals[task.id]
        query, page, product, tried = self._find(goal)
        spare = self._turns - 2 - page - len(goal.options)
        steps = [("I search for it.", f"search[{query}]")]
        steps += [("It is not on this page.", f"click[{NEXT}]")] * (page - 1)
        for other in tried[: spare // 2]:
            missing = next(option for option in goal.options if option not in _values(other))
            steps.append((f"{other.id} could be it.", f"click[{other.id}]"))
            steps.append((f"It has no {missing}.", f"click[{PREVIOUS}]"))
        steps.append((f"{product.id} could be it.", f"click[{product.id}]"))
        steps += [(f"It should be {option}.", f"click[{option}]") for option in goal.options]
        steps.append(("This is what I need.", f"click[{BUY}]"))
        return [react_reply(thought, action) for thought, action in steps]

    def _find(self, goal: ShoppingGoal) -> tuple[str, int, Product, list[Product]]:
        """Words that find a product that fits on the first pages.

        Returns:
            the words, the product's page, the product, and those above it on that page that fit
            but for an option that they do not have, as far as the results show.
        """
        wanted = self._catalogue.by_id[goal.product_id]
        for query in (" ".join((*goal.attributes, wanted.query)), wanted.name):
            shown = self._catalogue.search(query)[: _MOST_PAGES * PER_PAGE]
            for place, product in enumerate(shown):
                if self._fits(product, goal, wanted):
                    above = shown[place // PER_PAGE * PER_PAGE : place]
                    tried = [other for other in above if _seems_to_fit(other, goal)]
                    return query, place // PER_PAGE + 1, product, tried
        return wanted.id, 1, wanted, []

    def _fits(self, product: Product, goal: ShoppingGoal, wanted: Product) -> bool:
        chosen = [*goal.options]
        whole = purchase_reward(product, goal, wanted, chosen) == 1.0
        return whole and _values(product).issuperset(chosen)

    def close(self) -> None:
        """Do nothing: there are no processes to stop."""


def _values(product: Product) -> set[str]:
    return {value for values in product.options.values() for value in values}


def _seems_to_fit(product: Product, goal: ShoppingGoal) -> bool:
    """True if the name and the price fit, but an option of the goal is missing."""
    named = all(wish in product.name.lower() for wish in goal.attributes)
    affordable = product.price <= goal.price_limit
    return named and affordable and not _values(product).issuperset(goal.options)


SYSTEM: Final = (
    "Buy what the instruction asks for. Each reply is a thought and an action, "
    '"Thought: …" and "Action: …" on two lines. search[words] finds products; click[button] clicks '
    "a button, which the page shows in brackets: a product, a value of an option, or Buy Now. "
    "Choose the options before you buy. A purchase ends the task, and counts for what it has of "
    "the attributes, the options and the price that were asked for."
)


class WebShopConfig(NumberedConfig):
    """WebShop's `[environment]` table.

    Attributes:
        products: WebShop's file of products; without it the catalogue is generated.
        attributes: WebShop's file of their attributes.
        instructions: WebShop's file of the instructions that people wrote.
        catalogue_seed: the generated catalogue. Two of them share no product and no goal.
        turns: actions after which an episode ends.
    """

    name: Literal["webshop"] = "webshop"
    products: Path | None = None
    attributes: Path | None = None
    instructions: Path | None = None
    catalogue_seed: int = Field(default=0, ge=0, lt=CATALOGUES)
    turns: int = Field(default=10, ge=1)

    @model_validator(mode="after")
    def _files_come_together(self) -> Self:
        files = (self.products, self.attributes, self.instructions)
        if any(files) and not all(files):
            raise ValueError(
                f"products is {self.products}, attributes {self.attributes} and instructions "
                f"{self.instructions}; name all three, or none for a generated catalogue"
            )
        return self


def build_suite(config: WebShopConfig) -> ShoppingSuite:
    """The goals that `config` describes, and their shop."""
    if config.products and config.attributes and config.instructions:
        catalogue = Catalogue(read_products(config.products, config.attributes))
        goals = read_goals(config.instructions, catalogue.products)
        return ShoppingSuite(config.products.stem, catalogue, goals, turns=config.turns)
    products = generated_products(config.catalogue_seed)
    seeds = range(config.first_seed, config.first_seed + config.count)
    goals = [generated_goal(seed, products, config.catalogue_seed) for seed in seeds]
    return ShoppingSuite("generated", Catalogue(products), goals, turns=config.turns)


WEBSHOP = EnvironmentBundle(
    name="webshop",
    config=WebShopConfig,
    build_suite=build_suite,
    chat=ChatFormat(SYSTEM),
    task_markers=(TaskMarker(INSTRUCTION_OPENING),),
    void_observation=INVALID,
    packages=("bm25s", "rapidfuzz"),
    harmless="search[xyzzy]",
)
