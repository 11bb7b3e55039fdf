"""Options of the client's methods.

Generated from the server's OpenAPI document by `make client-types`; do not edit.
"""

from typing import Any, Literal, Required, TypedDict


class AttemptsOptions(TypedDict, total=False):
    """Options of a comparison of attempts."""

    go_on: int | None
    """most attempts that go on; null is half of those that run, rounded up"""
    budget_tokens: int | None
    """of all attempts together: only as many go on as the rest pays one more turn"""
    q_model: str | None
    """a name, `name@version` or alias; null takes the default"""
    out_of_domain: Literal["unguided", "guide"] | None
    """
    answer to a state of another kind than the Q model was trained on: `unguided` takes the
    likeliest candidate, `guide` that of the Q model; null takes the server's setting
    """
    least_read: float | None
    """
    share of a long history's tokens that a window has to read; less is out of the Q model's
    domain, see `out_of_domain`; null takes the server's setting
    """
    long_history: Literal["error", "window"] | None
    """
    answer if the history is longer than the Q model takes: `error`, or `window` to score after
    the task and the newest turns that fit; null takes the server's setting
    """
    deadline_s: float
    """
    seconds, retries included, after which the answer is of no use; the server stops its work
    then and may have a shorter limit of its own
    """


class ModelOptions(TypedDict, total=False):
    """Options of a request that only scores."""

    q_model: str | None
    """a name, `name@version` or alias; null takes the default"""
    episode_id: str | None
    """
    identifies the episode that this step belongs to; with a split alias all its steps use the
    same Q model
    """
    deadline_s: float
    """
    seconds, retries included, after which the answer is of no use; the server stops its work
    then and may have a shorter limit of its own
    """


class OutcomeOptions(TypedDict, total=False):
    """Options of an episode's outcome."""

    terminated: bool
    """false if a step limit truncated the episode"""
    action: str | None
    """the last action, if it was not the chosen one"""
    observation: str
    """the observation after the last action"""


class PolicyShare(TypedDict, total=False):
    """A policy, and how many of a step's candidates it draws."""

    name: Required[str]
    n: int | None
    """
    null for all policies lets a server that learns split num_candidates by the outcomes of
    earlier episodes
    """


class RerankOptions(ModelOptions, total=False):
    """Options of a reranking."""

    rank_fields: list[str] | None
    """
    Cohere's: the fields of documents that are objects, in the order in which they are read;
    null reads `text`
    """
    top_n: int | None
    """number of documents to return, best first; null returns all"""
    raw_scores: bool | None
    """
    Infinity's: true puts the raw Q into `relevance_score`; if it is sent at all, `document` is
    a plain text, as Infinity's clients expect
    """
    use_activation: bool | None
    """vLLM's: false is raw_scores"""


class ScoreOptions(ModelOptions, total=False):
    """Options of scoring candidates."""

    counts: list[int] | None
    """how often each candidate was drawn, for its prior"""
    logprobs: list[float] | None
    """log-likelihood of each candidate by its policy; in place of `counts`"""
    tools: list[dict[str, Any]] | None
    """what the candidates may call, in OpenAI's shape; only the rule `validity` reads it"""
    greedy: int | None
    """
    index of the candidate that the policy gave at temperature 0; beside `counts` or `logprobs`
    it counts as much as the Q model's fit found right
    """
    selection: Literal["argmax", "posterior"] | None
    """
    `argmax` chooses the highest Q, `posterior` the highest Q / tau + log prior; null takes the
    server's setting, else `posterior` if `tau` is given or the Q model's manifest has a fitted
    one
    """
    tau: float | None
    """
    temperature of Q in the posterior: at 0 Q alone counts, and the larger it is, the more the
    prior does; null takes the server's setting, else the Q model's fitted one
    """
    out_of_domain: Literal["unguided", "guide"] | None
    """
    answer to a state of another kind than the Q model was trained on: `unguided` takes the
    likeliest candidate, `guide` that of the Q model; null takes the server's setting
    """
    least_read: float | None
    """
    share of a long history's tokens that a window has to read; less is out of the Q model's
    domain, see `out_of_domain`; null takes the server's setting
    """
    long_history: Literal["error", "window"] | None
    """
    answer if the history is longer than the Q model takes: `error`, or `window` to score after
    the task and the newest turns that fit; null takes the server's setting
    """
    earned: float | None
    """
    the outcome of the episode if it had ended before this step: a total, and not what the last
    action added; null where that is unknown
    """


class ActOptions(ModelOptions, total=False):
    """Options of drawing candidates and scoring them."""

    selection: Literal["argmax", "posterior"] | None
    """
    `argmax` chooses the highest Q, `posterior` the highest Q / tau + log prior; null takes the
    server's setting, else `posterior` if `tau` is given or the Q model's manifest has a fitted
    one
    """
    tau: float | None
    """
    temperature of Q in the posterior: at 0 Q alone counts, and the larger it is, the more the
    prior does; null takes the server's setting, else the Q model's fitted one
    """
    out_of_domain: Literal["unguided", "guide"] | None
    """
    answer to a state of another kind than the Q model was trained on: `unguided` takes the
    likeliest candidate, `guide` that of the Q model; null takes the server's setting
    """
    least_read: float | None
    """
    share of a long history's tokens that a window has to read; less is out of the Q model's
    domain, see `out_of_domain`; null takes the server's setting
    """
    policies: list[PolicyShare] | None
    """
    several policies that draw the step's candidates, n each, in place of one; one that fails
    costs its own candidates only; in a header `large=2,small=3`, or without n `large,small`
    """
    fallback: Literal["error", "first"] | None
    """
    answer if no Q is available: `error`, or `first` for the likeliest candidate: the one drawn
    most often, of equal ones the first; null takes the server's setting
    """
    long_history: Literal["error", "first", "window"] | None
    """
    answer if the history is longer than the Q model takes: `error`, `first` for the likeliest
    candidate, or `window` to score after the task and the newest turns that fit; null takes the
    server's setting
    """
    prior: Literal["votes", "likelihood", "likelihood-per-token"] | None
    """
    the prior: `votes`, smoothed shares of the draws, or the policy's own `likelihood`, or
    `likelihood-per-token`; votes where a candidate has no logprob; null takes the server's
    setting, else what the Q model was fitted with
    """
    earned: float | None
    """
    the outcome of the episode if it had ended before this step: a total, and not what the last
    action added; null where that is unknown
    """
    adaptive: bool | None
    """
    draw in small batches until a candidate's Q exceeds the previous step's, at most
    num_candidates; needs an episode or previous_q; null takes the server's setting for steps of
    an episode
    """
    previous_q: float | None
    """for adaptive: Q of the previous action; null takes it from the episode"""
    until_decided: bool
    """
    draw in small batches, at most num_candidates, and stop once no further draw can change the
    choice
    """
    max_wait_s: float | None
    """
    answer after this time with the best of the candidates that have come, at least one, or
    earlier if none of the others could change the choice; null waits for all
    """
    perturb: bool
    """draw all candidates but the first from paraphrases of the task"""
    task: str | None
    """for perturb: the part of the first user message to paraphrase; null detects it"""
    num_candidates: int
    """M, how many candidates to draw"""
    temperature: float | None
    """null is the policy's default, which reasoning models need"""
    greedy_candidate: bool
    """draw the first candidate at temperature 0, unless temperature is null"""
    max_tokens: int | None
    """of each candidate; null is the policy's default"""
    seed: int | None
    policy: str | None
    """null takes the default"""


class BatchOptions(ModelOptions, total=False):
    """Options of scoring a batch."""

    selection: Literal["argmax", "posterior"] | None
    """
    `argmax` chooses the highest Q, `posterior` the highest Q / tau + log prior; null takes the
    server's setting, else `posterior` if `tau` is given or the Q model's manifest has a fitted
    one
    """
    tau: float | None
    """
    temperature of Q in the posterior: at 0 Q alone counts, and the larger it is, the more the
    prior does; null takes the server's setting, else the Q model's fitted one
    """
    out_of_domain: Literal["unguided", "guide"] | None
    """
    answer to a state of another kind than the Q model was trained on: `unguided` takes the
    likeliest candidate, `guide` that of the Q model; null takes the server's setting
    """
    least_read: float | None
    """
    share of a long history's tokens that a window has to read; less is out of the Q model's
    domain, see `out_of_domain`; null takes the server's setting
    """
    long_history: Literal["error", "window"] | None
    """
    answer if the history is longer than the Q model takes: `error`, or `window` to score after
    the task and the newest turns that fit; null takes the server's setting
    """


class GuidanceOptions(TypedDict, total=False):
    """Options under `qguide` in the body of a chat completion."""

    q_model: str | None
    """a name, `name@version` or alias; null takes the default"""
    selection: Literal["argmax", "posterior"] | None
    """
    `argmax` chooses the highest Q, `posterior` the highest Q / tau + log prior; null takes the
    server's setting, else `posterior` if `tau` is given or the Q model's manifest has a fitted
    one
    """
    tau: float | None
    """
    temperature of Q in the posterior: at 0 Q alone counts, and the larger it is, the more the
    prior does; null takes the server's setting, else the Q model's fitted one
    """
    out_of_domain: Literal["unguided", "guide"] | None
    """
    answer to a state of another kind than the Q model was trained on: `unguided` takes the
    likeliest candidate, `guide` that of the Q model; null takes the server's setting
    """
    least_read: float | None
    """
    share of a long history's tokens that a window has to read; less is out of the Q model's
    domain, see `out_of_domain`; null takes the server's setting
    """
    policies: list[PolicyShare] | None
    """
    several policies that draw the step's candidates, n each, in place of one; one that fails
    costs its own candidates only; in a header `large=2,small=3`, or without n `large,small`
    """
    fallback: Literal["error", "first"] | None
    """
    answer if no Q is available: `error`, or `first` for the likeliest candidate: the one drawn
    most often, of equal ones the first; null takes the server's setting
    """
    long_history: Literal["error", "first", "window"] | None
    """
    answer if the history is longer than the Q model takes: `error`, `first` for the likeliest
    candidate, or `window` to score after the task and the newest turns that fit; null takes the
    server's setting
    """
    prior: Literal["votes", "likelihood", "likelihood-per-token"] | None
    """
    the prior: `votes`, smoothed shares of the draws, or the policy's own `likelihood`, or
    `likelihood-per-token`; votes where a candidate has no logprob; null takes the server's
    setting, else what the Q model was fitted with
    """
    episode_id: str | None
    """
    identifies the episode that this step belongs to; with a split alias all its steps use the
    same Q model
    """
    earned: float | None
    """
    the outcome of the episode if it had ended before this step: a total, and not what the last
    action added; null where that is unknown
    """
    adaptive: bool | None
    """
    draw in small batches until a candidate's Q exceeds the previous step's, at most
    num_candidates; needs an episode or previous_q; null takes the server's setting for steps of
    an episode
    """
    previous_q: float | None
    """for adaptive: Q of the previous action; null takes it from the episode"""
    until_decided: bool
    """
    draw in small batches, at most num_candidates, and stop once no further draw can change the
    choice
    """
    max_wait_s: float | None
    """
    answer after this time with the best of the candidates that have come, at least one, or
    earlier if none of the others could change the choice; null waits for all
    """
    perturb: bool
    """draw all candidates but the first from paraphrases of the task"""
    task: str | None
    """for perturb: the part of the first user message to paraphrase; null detects it"""
    num_candidates: int | None
    """M, how many candidates to draw; null takes the server's default"""
    temperature: float | None
    """of the candidates; overrides the body's `temperature`"""
    return_candidates: bool
    """include all candidates and their Q in the answer"""


class ChatParameters(TypedDict, total=False):
    """Parameters of a chat completion that the server itself reads."""

    model: str | None
    """the policy; null takes the default"""
    n: int | None
    """number of candidates to return, best first"""
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
