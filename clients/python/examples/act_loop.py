"""An agent without a model of its own: the server draws what it might do and chooses.

python act_loop.py http://127.0.0.1:8000
"""

import sys

from qguide_client import QGuide


class Room:
    """Put your environment here; this one ends when the agent stands at the desk."""

    reward: float | None = None

    def reset(self) -> str:
        """The first observation includes the task."""
        return "You see a desk 1 and a shelf 1. Your task is to: find the mug."

    def step(self, reply: str) -> str:
        """Do what stands after "Action:"."""
        if reply.endswith("Action: go to desk 1"):
            self.reward = 1.0
            return "On the desk 1, you see a mug 1."
        return "Nothing happens."


def main(url: str, *, max_steps: int = 10) -> None:
    """Play one episode."""
    room = Room()
    with QGuide(url) as client, client.episode(num_candidates=5, seed=0) as episode:
        observation = room.reset()
        while room.reward is None and len(episode.messages) < 2 * max_steps:
            observation = room.step(episode.act(observation))
        print(f"{observation} Reward {room.reward}.")


if __name__ == "__main__":
    main(sys.argv[1])
