"""An agent on a hosted model: you draw the candidates, the server says which is best.

python rerank.py http://127.0.0.1:8000
"""

import sys

from qguide_client import QGuide

HISTORY = [{"role": "user", "content": "You see a desk 1 and a shelf 1. Your task is to: find the mug."}]


def draw() -> list[str]:
    """Ask your own model for several replies here (`n=3`), and drop those that repeat."""
    return [
        "Thought: I should look around first.\nAction: look",
        "Thought: A mug may stand on the desk.\nAction: go to desk 1",
        "Thought: What do I carry?\nAction: inventory",
    ]


def main(url: str) -> None:
    """Choose among the candidates."""
    candidates = draw()
    with QGuide(url) as client:
        scores = client.score(HISTORY, candidates)
    for q_value, candidate in zip(scores.q_values, candidates, strict=True):
        print(f"{q_value:6.3f}  {candidate.splitlines()[-1]}")
    print(f"chosen: {candidates[scores.chosen].splitlines()[-1]}")


if __name__ == "__main__":
    main(sys.argv[1])
