"""Q of an action from the server's /classify, as a reward function of TRL and of verl.

The state and the action go out as one conversation; the reward of the action is its raw Q. The
server's address is in QGUIDE_URL, and its key, if it wants one, in QGUIDE_API_KEY.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

Turn = Mapping[str, Any]

DEFAULT_URL = "http://127.0.0.1:8000"
AT_ONCE = 16
TOO_LONG = "history_too_long"
"""Code of the error about a conversation that has more tokens than the Q model takes."""


def q_of(client: httpx.Client, state: Sequence[Turn], action: str) -> float:
    """Q of one action in one state.

    Raises:
        httpx.HTTPStatusError: the server refused the conversation, for example as too long.
    """
    messages = [*map(dict, state), {"role": "assistant", "content": action}]
    body = {"messages": messages, "use_activation": False}
    response = client.post("/classify", json=body)
    response.raise_for_status()
    [q_value] = response.json()["data"][0]["probs"]
    return float(q_value)


def connect() -> httpx.Client:
    """A client of the server in the environment."""
    key = os.environ.get("QGUIDE_API_KEY")
    return httpx.Client(
        base_url=os.environ.get("QGUIDE_URL", DEFAULT_URL),
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=60.0,
    )


def q_rewards(
    prompts: Sequence[Sequence[Turn]], completions: Sequence[Sequence[Turn]], **_: object
) -> list[float | None]:
    """TRL's reward function: one Q per completion, asked for in parallel.

    None for a conversation that is too long for the Q model: TRL leaves it out of the rewards, and
    one long sample does not end the training.
    """
    with connect() as client, ThreadPoolExecutor(AT_ONCE) as pool:
        actions = [str(completion[-1]["content"]) for completion in completions]
        pairs = zip(prompts, actions, strict=True)
        return list(pool.map(lambda pair: _q_or_none(client, *pair), pairs))


def _q_or_none(client: httpx.Client, state: Sequence[Turn], action: str) -> float | None:
    try:
        return q_of(client, state, action)
    except httpx.HTTPStatusError as error:
        answer = error.response
        if answer.status_code != 400 or answer.json()["error"]["code"] != TOO_LONG:
            raise
        return None


def compute_score(data_source: str, solution_str: str, ground_truth: object, extra_info: Mapping[str, Any]) -> float:
    """verl's reward function: Q of one response in the state of its row."""
    with connect() as client:
        return q_of(client, extra_info["state"], solution_str)
