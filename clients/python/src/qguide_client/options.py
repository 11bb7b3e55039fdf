"""Options of the client's methods.

Generated from the server's OpenAPI document by `make client-types`; do not edit.
"""

from typing import Literal, TypedDict


class GuidanceOptions(TypedDict, total=False):
    """Options under `qguide` in the body of a chat completion."""

    q_model: str | None
    """a name, `name@version` or alias; null takes the default"""
    fallback: Literal["error", "first"] | None
    """
    if no Q can be given: `error`, or `first` for the first candidate; null takes the server's
    setting
    """
    episode_id: str | None
    """ties the steps of one episode together, and to one Q model where the operator split them"""
    adaptive: bool
    """
    draw in small batches until Q rises over the previous step's, at most num_candidates; needs
    episode_id or previous_q
    """
    previous_q: float | None
    """for adaptive: Q of the action that led here; null takes the episode's"""
    perturb: bool
    """draw the candidates after the first under paraphrases of the task"""
    task: str | None
    """for perturb: the part of the first user message that says what to do; null finds it"""
    num_candidates: int | None
    """M, how many candidates to draw; null takes the server's default"""
    temperature: float | None
    """of the candidates; goes before the body's `temperature`"""
    return_candidates: bool
    """whether the answer shows all candidates"""


class ModelOptions(TypedDict, total=False):
    """Options of a request that only scores."""

    q_model: str | None
    """a name, `name@version` or alias; null takes the default"""
    episode_id: str | None
    """ties the steps of one episode together, and to one Q model where the operator split them"""
    deadline_s: float
    """
    seconds, retries included, after which the answer is of no use; the server stops its work
    then and may have a shorter limit of its own
    """


class OutcomeOptions(TypedDict, total=False):
    """Options of an episode's outcome."""

    terminated: bool
    """false if a limit of steps cut the episode off"""
    action: str | None
    """the last one, if it was not the chosen one"""
    observation: str
    """the observation after the last action"""


class RerankOptions(ModelOptions, total=False):
    """Options of a reranking."""

    top_n: int | None
    """how many of the best to return; null returns all"""


class ActOptions(ModelOptions, total=False):
    """Options of drawing candidates and scoring them."""

    fallback: Literal["error", "first"] | None
    """
    if no Q can be given: `error`, or `first` for the first candidate; null takes the server's
    setting
    """
    adaptive: bool
    """
    draw in small batches until Q rises over the previous step's, at most num_candidates; needs
    episode_id or previous_q
    """
    previous_q: float | None
    """for adaptive: Q of the action that led here; null takes the episode's"""
    perturb: bool
    """draw the candidates after the first under paraphrases of the task"""
    task: str | None
    """for perturb: the part of the first user message that says what to do; null finds it"""
    num_candidates: int
    """M, how many candidates to draw"""
    temperature: float | None
    """null leaves it to the policy, which reasoning models need"""
    greedy_candidate: bool
    """draw the first candidate at temperature 0, unless temperature is null"""
    max_tokens: int | None
    """of each candidate; null leaves it to the policy"""
    seed: int | None
    policy: str | None
    """null takes the default"""


class ChatParameters(TypedDict, total=False):
    """Parameters of a chat completion that the server itself reads."""

    model: str | None
    """a policy; null takes the default"""
    n: int | None
    """how many of the best to return"""
    temperature: float | None
    max_tokens: int | None
    max_completion_tokens: int | None
    seed: int | None
    qguide: GuidanceOptions
    deadline_s: float
    """
    seconds, retries included, after which the answer is of no use; the server stops its work
    then and may have a shorter limit of its own
    """
