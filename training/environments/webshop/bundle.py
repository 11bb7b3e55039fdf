"""WebShop as the jobs know it: buy the product that an instruction describes (Yao et al., 2022).

[environment]
name = "webshop"
products = "data/items_shuffle.json"          # without these three: a generated catalogue
attributes = "data/items_ins_v2.json"
instructions = "data/items_human_ins.json"
slice = "0:500"                               # WebShop's test split
"""

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from qguide.qnet.types import TaskMarker
from qguide.training.environment import EnvironmentBundle, EnvironmentConfig
from qguide.training.environments.webshop.catalogue import Catalogue
from qguide.training.environments.webshop.episode import INVALID
from qguide.training.environments.webshop.files import read_goals, read_products
from qguide.training.environments.webshop.generated import (
    CATALOGUES,
    generated_goal,
    generated_products,
)
from qguide.training.environments.webshop.pages import INSTRUCTION_OPENING
from qguide.training.environments.webshop.suite import ShoppingSuite
from qguide.training.trajectory import ChatFormat

SYSTEM: Final = (
    "Buy what the instruction asks for. Each reply is a thought and an action, "
    '"Thought: …" and "Action: …" on two lines. search[words] finds products; click[button] clicks '
    "a button, which the page shows in brackets: a product, a value of an option, or Buy Now. "
    "Choose the options before you buy. A purchase ends the task, and counts for what it has of "
    "the attributes, the options and the price that were asked for."
)


class WebShopConfig(EnvironmentConfig):
    """WebShop's `[environment]` table.

    Attributes:
        products: WebShop's file of products; without it the catalogue is generated.
        attributes: WebShop's file of their attributes.
        instructions: WebShop's file of the instructions that people wrote.
        catalogue_seed: the generated catalogue. Two of them share no product and no goal.
        first_seed: the first generated goal.
        count: how many generated goals.
        turns: actions after which an episode ends.
    """

    name: Literal["webshop"] = "webshop"
    products: Path | None = None
    attributes: Path | None = None
    instructions: Path | None = None
    catalogue_seed: int = Field(default=0, ge=0, lt=CATALOGUES)
    first_seed: int = Field(default=0, ge=0)
    count: int = Field(default=100, ge=1)
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
