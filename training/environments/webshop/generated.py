"""Generated catalogues and generated goals, so that tests and smoke runs need no data."""

from dataclasses import dataclass
from random import Random
from typing import Final
from zlib import crc32

from qguide.training.environments.webshop.catalogue import Product, ShoppingGoal

CATALOGUE_SIZE: Final = 300
CATALOGUES: Final = 8
"""Number of catalogues. No two have a product or the wishes of a goal in common."""

_BRANDS: Final = ("Alvora", "Brisk", "Cobalt Row", "Dunmere", "Everlane Peak", "Fjordal", "Gantry")
_COLORS: Final = ("black", "white", "dark green", "navy blue", "red", "silver", "pink")
_SUFFIX: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ0123456789"


@dataclass(frozen=True, slots=True)
class _Type:
    name: str
    kind: str
    category: tuple[str, ...]
    attributes: tuple[str, ...]
    sizes: tuple[str, ...]
    prices: tuple[int, int]


_TYPES: Final = (
    _Type(
        "backpack",
        "bags",
        ("travel", "backpacks"),
        ("water resistant", "light weight", "padded straps", "laptop pocket", "foldable"),
        ("20 liter", "30 liter", "45 liter"),
        (25, 120),
    ),
    _Type(
        "desk lamp",
        "home",
        ("lighting", "desk lamps"),
        ("energy saving", "dimmable", "touch control", "usb port", "eye caring"),
        ("small", "tall"),
        (15, 80),
    ),
    _Type(
        "running shoes",
        "clothing",
        ("shoes", "running"),
        ("slip resistant", "memory foam", "breathable", "arch support", "machine washable"),
        ("7", "8", "9", "10"),
        (35, 140),
    ),
    _Type(
        "shampoo",
        "beauty",
        ("hair care", "shampoos"),
        ("sulfate free", "cruelty free", "tea tree", "dry hair", "paraben free"),
        ("8 fl oz", "16 fl oz", "pack of 2"),
        (6, 35),
    ),
    _Type(
        "snack bars",
        "food",
        ("snacks", "bars"),
        ("gluten free", "low sugar", "high protein", "dairy free", "nut free"),
        ("pack of 6", "pack of 12", "pack of 24"),
        (8, 40),
    ),
    _Type(
        "bluetooth speaker",
        "electronics",
        ("audio", "speakers"),
        ("noise cancelling", "fast charging", "long battery life", "hands free", "stereo sound"),
        ("mini", "standard"),
        (18, 150),
    ),
)


def generated_products(catalogue_seed: int = 0) -> list[Product]:
    """A catalogue, always the same for a seed below `CATALOGUES`."""
    rng = Random(catalogue_seed)
    first = catalogue_seed * CATALOGUE_SIZE
    return [_product(number, rng) for number in range(first, first + CATALOGUE_SIZE)]


def _product(number: int, rng: Random) -> Product:
    kind = _TYPES[number % len(_TYPES)]
    attributes = tuple(rng.sample(kind.attributes, k=3))
    colors = tuple(rng.sample(_COLORS, k=rng.randint(2, 4)))
    brand = rng.choice(_BRANDS)
    # The third attribute is not in the name: it is on another page, or only in the records.
    name = f"{brand} {kind.name.title()} {number}, {attributes[0].title()}, {attributes[1].title()}"
    return Product(
        id="B0" + "".join(rng.choice(_SUFFIX) for _ in range(8)),
        name=name,
        kind=kind.kind,
        category=kind.category,
        query=kind.name,
        description=f"A {kind.name} by {brand}. It is {attributes[2]}.",
        features=(f"{attributes[0]}", f"{attributes[1]}", f"sizes: {', '.join(kind.sizes)}"),
        attributes=attributes,
        options={"color": colors, "size": kind.sizes},
        prices=(rng.randint(*kind.prices) - 0.01,),
    )


def generated_goal(seed: int, products: list[Product], catalogue_seed: int = 0) -> ShoppingGoal:
    """The goal of any integer; it may fit several products of its catalogue."""
    rng = Random(seed)
    goal = _draw_goal(seed, products, rng)
    while not _belongs(goal, catalogue_seed):
        goal = _draw_goal(seed, products, rng)
    return goal


def _belongs(goal: ShoppingGoal, catalogue_seed: int) -> bool:
    """True if a goal's wishes, without the price, are among this catalogue's share of all wishes.

    The catalogues have the same types, attributes and options, so other products alone would not
    keep the goals of two of them apart.
    """
    wishes = goal.instruction.partition(", and price")[0]
    return crc32(wishes.encode()) % CATALOGUES == catalogue_seed


def _draw_goal(seed: int, products: list[Product], rng: Random) -> ShoppingGoal:
    product = rng.choice(products)
    attributes = tuple(rng.sample(product.attributes, k=2))
    options = tuple(rng.choice(values) for values in product.options.values())
    limit = 10.0 * (product.price // 10 + rng.randint(1, 3))
    color, size = options
    instruction = (
        f"i need {product.query} that are {attributes[0]} and {attributes[1]}, in color {color} "
        f"and size {size}, and price lower than {limit:.2f} dollars"
    )
    return ShoppingGoal(f"generated/{seed}", product.id, instruction, attributes, options, limit)
