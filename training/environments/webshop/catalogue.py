"""Products of a shop, and the goals of its customers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qguide.training.environment import Task
from qguide.training.environments.support.bm25 import Bm25Ranking

MOST_RESULTS = 50


@dataclass(frozen=True, slots=True)
class Product:
    """One product.

    Attributes:
        id: the shop's number, ten characters.
        kind: the shop's department, which says nothing about the type of product.
        category: the path of its categories, each level below the one before it.
        options: values to choose from, by the option's name, in lower case.
        prices: one, or the lowest and the highest.
    """

    id: str
    name: str
    kind: str
    category: tuple[str, ...]
    query: str
    description: str
    features: tuple[str, ...]
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    prices: tuple[float, ...]

    @property
    def price_text(self) -> str:
        """The price as pages show it."""
        return " to ".join(_price_text(price) for price in self.prices)

    @property
    def price(self) -> float:
        """The price that is paid; of a range, the middle."""
        return sum(self.prices) / len(self.prices)


@dataclass(frozen=True, slots=True)
class ShoppingGoal:
    """One customer's wish.

    Attributes:
        product_id: the product that the instruction was written for.
        attributes, options: what the product should have, and which values should be chosen.
    """

    id: str
    product_id: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_limit: float


class Catalogue:
    """The products of a shop, which can be searched."""

    def __init__(self, products: Sequence[Product]) -> None:
        self.products = products
        self.by_id = {product.id: product for product in products}
        texts = [" ".join((p.name, p.query, p.kind, *p.category, *p.features, p.description)) for p in products]
        self._ranking = Bm25Ranking(texts)

    def search(self, query: str) -> list[Product]:
        """The best 50 products for a query, by BM25 of all their texts."""
        return [self.products[place] for place in self._ranking.rank(query)[:MOST_RESULTS]]

    def task_of(self, goal: ShoppingGoal) -> Task:
        """The task as the jobs know it; its kind is the product's."""
        return Task(goal.id, self.by_id[goal.product_id].kind, goal.id)


def _price_text(price: float) -> str:
    return f"${price:.0f}" if price == round(price) else f"${price:.2f}"
