"""An agent with tools that speaks OpenAI's API, in a house that its model does not know.

pip install openai
python model.py --port 8001               # knows the tools, not the house
python agent.py http://127.0.0.1:8000 --errands 0:40 --times 5

An errand is to find a thing, take it and bring it to somebody. There are 64 of them, and two wrong
calls are forgiven. docs/train/whole-way.md trains a Q model on such episodes.
"""

import argparse
import json
import random
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from openai import OpenAI

PLACES = ("fridge", "drawer", "shelf")
ROOMS = ("kitchen", "office", "garden")
THINGS = {
    "milk": "fridge",
    "butter": "fridge",
    "spoon": "drawer",
    "scissors": "drawer",
    "vase": "shelf",
    "atlas": "shelf",
    "juice": "fridge",
    "map": "shelf",
}
PEOPLE = {
    "Ana": "kitchen",
    "Ben": "kitchen",
    "Dora": "office",
    "Emil": "office",
    "Finn": "garden",
    "Greta": "garden",
    "Hugo": "kitchen",
    "Ida": "garden",
}
MOST_CALLS = 5
SYSTEM = "You run errands in a house. Use the tools."


def tool(name: str, description: str, argument: str, values: tuple[str, ...]) -> dict[str, Any]:
    """A tool with one argument, in OpenAI's format."""
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string", "enum": list(values)}},
        "required": [argument],
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS: Any = [
    tool("open", "Open a place and look inside.", "place", PLACES),
    tool("take", "Take a thing that you see.", "thing", tuple(THINGS)),
    tool("bring", "Bring what you have to a room.", "room", ROOMS),
]


@dataclass
class House:
    """One errand in the house."""

    thing: str
    person: str
    calls: int = 0
    seen: bool = False
    taken: bool = False
    reward: float = 0.0

    @property
    def task(self) -> str:
        """The task as the agent reads it."""
        return f"Bring the {self.thing} to {self.person}."

    @property
    def done(self) -> bool:
        """True after success, or after the last call that is allowed."""
        return self.reward > 0 or self.calls == MOST_CALLS

    def call(self, name: str, argument: str) -> str:
        """The result of a tool."""
        self.calls += 1
        match name:
            case "open":
                self.seen = THINGS[self.thing] == argument
                return f"The {self.thing} is here." if self.seen else f"No {self.thing} here."
            case "take" if self.seen and argument == self.thing:
                self.taken = True
                return f"You have the {self.thing} for {self.person}."
            case "bring" if self.taken and PEOPLE[self.person] == argument:
                self.reward = 1.0
                return f"Thanks from {self.person}."
            case "bring" if self.taken:
                return f"No {self.person} here."
        return "That is not possible."


@dataclass
class Agent:
    """A loop of chat completions and tool calls.

    Attributes:
        options: fields of the `qguide` object of every request.
    """

    client: OpenAI
    options: dict[str, Any] = field(default_factory=dict)

    def play(self, house: House, episode_id: str) -> float:
        """Run an errand and report its outcome."""
        guidance = {"qguide": {**self.options, "episode_id": episode_id}}
        messages: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": house.task}]
        result = ""
        for _ in range(MOST_CALLS):  # replies: one without a tool call adds no call
            if house.done:
                break
            completion = self.client.chat.completions.create(
                model="default", messages=messages, tools=TOOLS, extra_body=guidance
            )
            reply = completion.choices[0].message
            messages.append(reply.model_dump(include={"role", "content", "tool_calls"}))
            for call in reply.tool_calls or []:
                assert call.type == "function"
                (argument,) = json.loads(call.function.arguments).values()
                result = house.call(call.function.name, argument)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        outcome = {"reward": house.reward, "terminated": house.reward > 0, "observation": result}
        self.client.post(f"/episodes/{episode_id}/outcome", body=outcome, cast_to=object)
        return house.reward


def errands() -> list[House]:
    """All errands, in a random order that is always the same."""
    pairs = list(product(THINGS, PEOPLE))
    random.Random(0).shuffle(pairs)
    return [House(thing, person) for thing, person in pairs]


def main() -> None:
    """Play errands and print how many succeeded."""
    parser = argparse.ArgumentParser(description="Run errands through a QGuide server.")
    parser.add_argument("url", help="address of the server")
    parser.add_argument("--errands", default="0:40", help="first and end of the errands to run")
    parser.add_argument("--times", type=int, default=5, help="episodes per errand")
    parser.add_argument("--candidates", type=int, default=1, help="tool calls to choose from")
    parser.add_argument("--q-model", help="name or alias of the Q model that chooses")
    parser.add_argument("--name", default="errand", help="beginning of the episodes' ids")
    given = parser.parse_args()
    client = OpenAI(base_url=f"{given.url}/v1", api_key="unused")
    first, end = (int(bound) for bound in given.errands.split(":"))
    rewards = []
    for number, errand in enumerate(errands()[first:end], first):
        for time in range(given.times):
            options: dict[str, Any] = {"num_candidates": given.candidates}
            if given.q_model:
                options["q_model"] = given.q_model
            house = House(errand.thing, errand.person)
            agent = Agent(client, options)
            rewards.append(agent.play(house, f"{given.name}-{number}-{time}"))
    print(f"{sum(rewards):.0f} of {len(rewards)} errands succeeded")


if __name__ == "__main__":
    main()
