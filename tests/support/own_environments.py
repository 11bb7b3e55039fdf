"""Environments as an operator writes them: with Gymnasium's interface, or TRL's."""

from itertools import count
from typing import Any

_noise = count()


class GymLamp:
    """Gymnasium's interface: three switches, each worth a third, in six steps."""

    system = "Press switches."

    def __init__(self) -> None:
        self.seed, self.on, self.steps = 0, set[str](), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.seed, self.on, self.steps = seed or 0, set(), 0
        name = (options or {}).get("name", f"lamp {self.seed}")
        return f"This is {name}. Your task is to: press switches 1 to 3.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        word, _, number = action.partition(" ")
        valid = word == "look" or (word == "press" and number in ("1", "2", "3"))
        reward = float(valid and word == "press" and number not in self.on)
        if reward:
            self.on.add(number)
        self.steps += 1
        text = f"On: {', '.join(sorted(self.on)) or 'none'}." if valid else "Look, or press 1 to 3."
        return text, reward, len(self.on) == 3, self.steps >= 6, {"valid": valid}


class NoisyLamp(GymLamp):
    """The same with answers that differ each time: branches by replay cannot be trusted."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text, *rest = super().step(action)
        return f"{text} It is {next(_noise)} o'clock.", *rest  # type: ignore[return-value]


class RareLamp(GymLamp):
    """The same, but every twentieth answer differs."""

    throws = count()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text, *rest = super().step(action)
        return f"{text}{'!' if next(self.throws) % 20 == 19 else ''}", *rest  # type: ignore[return-value]


class LuckyLamp(GymLamp):
    """The same, but every other press wins at once, whatever the episode."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text, reward, ended, truncated, info = super().step(action)
        lucky = action.startswith("press") and next(_noise) % 2 == 1
        return text, 3.0 if lucky else reward, ended or lucky, truncated, info


class UnsteadyLamp(GymLamp):
    """The same, which is noisy as long as a test says so."""

    noisy = True

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text, *rest = super().step(action)
        return f"{text} {next(_noise) if self.noisy else ''}", *rest  # type: ignore[return-value]


class Tenths(GymLamp):
    """Ten steps, each worth a tenth."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return "On it goes.", 0.1, self.steps == 10, False, {}


class BadReward(GymLamp):
    """Its second task gives `value` for the first switch, in place of a number."""

    value: Any = "one"

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        text, reward, *rest = super().step(action)
        return text, self.value if reward and self.seed == 1 else reward, *rest  # type: ignore[return-value]


class KeptLamp(NoisyLamp):
    """The noisy one, whose states can be kept."""

    def snapshot(self) -> tuple[int, frozenset[str], int]:
        return self.seed, frozenset(self.on), self.steps

    def restore(self, snapshot: tuple[int, frozenset[str], int]) -> None:
        self.seed, self.steps = snapshot[0], snapshot[2]
        self.on = set(snapshot[1])


class Shop:
    """TRL's interface: buy what the row asks for, within its budget."""

    def reset(self, wanted: str = "tea", budget: int = 5, **row: Any) -> str:
        self.wanted, self.budget, self.cart = wanted, budget, list[str]()
        return f" You have {budget} coins."

    def look(self) -> str:
        """List what is for sale."""
        return "tea 2, cake 4"

    def buy(self, item: str, count: int = 1) -> str:
        """Buy an item.

        Args:
            item: Name of the item.
            count: How many of it.
        """
        price = {"tea": 2, "cake": 4}[item] * count
        if price > self.budget:
            raise ValueError(f"{price} coins are too many")
        self.budget -= price
        self.cart += [item] * count
        return f"{self.budget} coins are left"

    def get_reward(self) -> float:
        return float(self.wanted in self.cart)


def neither() -> object:
    """A factory of something that is no environment."""
    return object()
