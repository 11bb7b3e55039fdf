"""Answers of the server.

Generated from the server's OpenAPI document by `make client-types`; do not edit.
"""

from typing import Any, Literal

from qguide_client.answer import (
    Answer,
    ChunkBase,
    CompletionBase,
    CustomToolCallBase,
    ReadinessBase,
    ReplyBase,
    ScoredItemBase,
    ToolCallBase,
)


class CalledFunction(Answer):
    """Name and arguments of a called function."""

    name: str
    arguments: str
    """JSON, as the model wrote it"""


class CalledTool(Answer):
    """Name and input of a called custom tool."""

    name: str
    input: str
    """any text"""


class ChatChunkChoice(Answer):
    """New part of one choice."""

    index: int
    delta: dict[str, Any]
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None


class CustomToolCall(CustomToolCallBase):
    """One call of a custom tool in an assistant message."""

    id: str
    type: Literal["custom"]
    custom: CalledTool


class JudgeCalls(Answer):
    """Requests to a judge and their tokens, as its upstream counts them."""

    calls: int
    """requests that the upstream answered"""
    cached_calls: int
    """requests that an earlier answer made unnecessary"""
    prompt_tokens: int
    completion_tokens: int


class JudgeCard(Answer):
    """The chat model behind a judge, and how it is asked."""

    model: str
    """the model's name at its upstream"""
    mode: str


class JudgedAttempt(Answer):
    """An attempt's value, and the verdict."""

    episode_id: str
    value: float | None
    """null if it was not compared, or no Q is known"""
    valid: bool
    """
    false if the rule `validity`, where it stands before the Q model, finds that the latest
    action failed: such attempts come after all others
    """
    tokens: int
    verdict: str
    """
    `best` goes on; `behind` is worth less than those; `budget`: the rest does not pay its next
    turn; `ended` was not running
    """


class Outcome(Answer):
    """A closed episode."""

    episode_id: str
    reward: float
    steps: int
    """number of distinct states that were guided"""
    recorded: bool
    """true if it was written to a file for the offline jobs"""
    reason: str | None = None
    """why it was not recorded"""


class ParaphraseUsage(Answer):
    """Tokens spent on paraphrases of the task."""

    prompt_tokens: int
    completion_tokens: int


class PolicyUsage(Answer):
    """Draws of one of several policies, and their cost."""

    name: str
    candidates: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    """null where neither prices nor the upstream tell it"""
    error: str | None
    """why it drew none, or no more; null if nothing failed"""


class PromptTokensDetails(Answer):
    """Details of the prompt's tokens."""

    cached_tokens: int
    """tokens that an upstream had cached"""
    cache_write_tokens: int | None = None
    """tokens that it put into its cache, if it says so"""


class RankedDocument(Answer):
    """A document's place and its Q."""

    index: int
    relevance_score: float
    """
    1 / (1 + exp(-q_value)): a ranking, not a probability; or the raw Q if `raw_scores` or
    `use_activation` asked for it
    """
    q_value: float
    """ours: the raw Q"""


class Readiness(ReadinessBase):
    """Health of the server."""

    status: str
    reason: str | None = None
    details: dict[str, str] = {}
    """
    `redis`: ok, or down while the server falls back to memory; absent without Redis. `upstream
    NAME`: ok, or its problem
    """


class RerankUsage(Answer):
    """Tokens of history and documents; `cached_tokens` is ours."""

    prompt_tokens: int
    total_tokens: int
    cached_tokens: int


class SampleUsage(ParaphraseUsage):
    """Tokens spent on drawing the candidates."""

    cached_tokens: int
    """tokens of the prompt that were cached"""


class Score(Answer):
    """Q of the candidate at `index` of the request."""

    index: int
    q_value: float
    prior: float | None = None
    """
    the policy's preference: the smoothed share of the draws with the candidate's effect, or its
    share of the likelihood; absent without `counts` and `logprobs`
    """
    posterior: float | None = None
    """share of the candidate's effect by Q and the prior; absent if it was not the reason"""
    verdicts: dict[str, float] | None = None
    """digit from 0 to 9 by each of the judge's criteria; absent without criteria"""
    judge_reason: str | None = None
    """the judge's reason for the verdicts, in its words; absent with them"""


class ScoreTimings(Answer):
    """Milliseconds per stage, including waits."""

    score: float
    total: float


class ScoreUsage(Answer):
    """Tokens that the scorer computed or found in its cache."""

    scored_tokens: int
    cached_tokens: int
    judge: JudgeCalls | None = None
    """
    requests to the judge that gave the Q-values, whose tokens are included in the others;
    absent for a trained Q model
    """


class StageUsage(Answer):
    """Tokens of each stage."""

    paraphrase: ParaphraseUsage
    sample: SampleUsage
    threshold: ParaphraseUsage
    """of actions below the operator's threshold; included in `sample`"""
    score: ScoreUsage


class StepCost(Answer):
    """Cost of a step, or of an action of it, in the currency of the operator's prices.

    Parts that nothing tells are null.
    """

    sample: float | None
    """
    of all candidates, by the upstream's word or the policy's prices, at which those of an
    escalation count, too; paraphrases are not in it
    """
    cached: float | None
    """of it, what upstreams with prices read from caches"""
    written: float | None
    """of it, what they wrote to caches"""
    score: float | None
    """of the judge; null for a trained Q model"""
    total: float
    """of the parts that are known"""


class TakenAction(Answer):
    """An action that was taken because the best Q was below the operator's threshold."""

    action: str
    outcome: str
    """
    `raised` if the best Q is no longer below the threshold; `failed` if nothing could be drawn
    or scored
    """
    policy: str
    """the policy that drew; empty for `stop`"""
    candidates: tuple[int, ...]
    """indices of the candidates that it drew"""
    best_q: float
    """best Q after it"""
    prompt_tokens: int
    completion_tokens: int
    cost: StepCost | None = None
    """of drawing and scoring its candidates; present as the step's is"""


class TauOutcome(Answer):
    """Expected outcome of a Q model's choices at one temperature."""

    tau: float
    outcome: float
    """mean label of the chosen candidates, over tasks"""
    standard_error: float
    """of the difference to the best temperature's"""


class ThresholdResult(Answer):
    """Actions of a step whose best Q was below the operator's threshold."""

    below: float
    """the threshold"""
    best_q: float
    """best Q before any action"""
    actions: tuple[TakenAction, ...]


class Timings(ScoreTimings):
    """Milliseconds per stage of one step, including waits."""

    sample: float
    paraphrase: float = 0.0


class ToolCall(ToolCallBase):
    """One tool call of an assistant message."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Usage(ScoreUsage):
    """Token usage of one step: drawing and scoring."""

    prompt_tokens: int
    completion_tokens: int
    threshold_tokens: int = 0
    """
    read and generated by actions below the operator's threshold; included in prompt and
    completion tokens
    """
    paraphrase_tokens: int = 0
    """generated for paraphrases; 0 if they were cached"""
    cached_prompt_tokens: int = 0
    """tokens of the prompt that an upstream had cached"""


class Verdicts(Answer):
    """Attempts that go on, and the reason for each that does not."""

    q_model: str
    q_model_version: str
    judge: bool = False
    """
    true if a judge gave the Q-values: a prompted chat model, not a trained Q model; the version
    of a judge begins with `judge-`
    """
    go_on: tuple[str, ...]
    """episode ids, the best first"""
    attempts: tuple[JudgedAttempt, ...]
    spent_tokens: int
    left_tokens: int | None
    """of the budget; null without one"""
    warnings: tuple[str, ...]
    """reasons for values that are not known"""
    usage: ScoreUsage


class Window(Answer):
    """Window of a history that is longer than the Q model takes."""

    read_messages: int
    """messages of the task, and the newest ones"""
    read_tokens: int
    """their tokens, counted as `left_out_tokens`"""
    left_out_messages: int
    """messages between them"""
    left_out_tokens: int
    """
    tokens of the messages that were left out, as the Q model's tokenizer counts them; of a
    judge an estimate
    """


class ChatGuidance(Answer):
    """The chosen candidate, the reason for it and what it cost."""

    q_model: str
    q_model_version: str
    judge: bool = False
    """
    true if a judge gave the Q-values: a prompted chat model, not a trained Q model; the version
    of a judge begins with `judge-`
    """
    chosen: int
    """index of the chosen candidate"""
    reason: str | None = None
    guided: bool
    """true if a Q model chose among different candidates"""
    unguided_reason: str | None = None
    """why no Q model has chosen"""
    domain_distance: float | None = None
    """
    distance of the state from those that the Q model was trained on, 1 being the limit; absent
    where nothing measured it
    """
    prior_by: str
    """source of the prior"""
    tau: float | None
    """temperature of Q in the posterior; null where Q alone chose, or none did"""
    draws_saved: int = 0
    """candidates that `adaptive`, `until_decided` or `max_wait_s` did without"""
    perturbed: int = 0
    """candidates drawn under a paraphrase"""
    warnings: tuple[str, ...] = ()
    """options that could not be applied, and why"""
    window: Window | None = None
    """
    present if the Q model read a window of a history that is longer than it takes
    (`long_history`)
    """
    threshold: ThresholdResult | None = None
    """present if the best Q was below the operator's threshold"""
    policy: str = ""
    policies: tuple[PolicyUsage, ...] | None = None
    """of each policy, where several drew; absent otherwise"""
    cost: StepCost | None = None
    """present if the operator's prices or the upstream tell something of it"""
    timings_ms: Timings | None = None
    returned: tuple[int, ...] = ()
    """indices of the returned candidates, the best first"""
    q_values: tuple[float, ...] | None
    """Q of every candidate; null if no Q was available"""
    prior: tuple[float, ...]
    """
    of every candidate, the policy's preference: the smoothed share of the draws with the
    candidate's effect, or its share of the likelihood
    """
    posterior: tuple[float, ...] | None
    """
    of every candidate, share of the candidate's effect by Q and the prior; null if it was not
    the reason
    """
    num_candidates: int = 0
    """number of candidates drawn"""
    distinct_candidates: int = 0
    """number of different candidates"""
    usage: StageUsage | None = None
    episode_id: str | None = None
    """present if the request belongs to one"""
    candidates: tuple[dict[str, Any], ...] = ()


class ChatMessage(ReplyBase):
    """The assistant's reply: a text, tool calls or both."""

    role: Literal["assistant"]
    content: str | None = None
    """null beside tool calls"""
    refusal: str | None = None
    tool_calls: tuple[ToolCall | CustomToolCall, ...] = ()


class ChatUsage(Answer):
    """Tokens of the policy, for all candidates together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: dict[str, int] = {}
    """as an upstream gave them, for example `reasoning_tokens`"""


class Message(Answer):
    """A drawn candidate, the assistant's turn; its content is never in parts."""

    role: str
    content: str | None = None
    """null beside tool calls"""
    tool_calls: tuple[ToolCall | CustomToolCall, ...] | None = None
    tool_call_id: str | None = None


class PriorCard(Answer):
    """Choice by Q and the policy's preference, fitted on held-back decisions."""

    tau: float
    """temperature of Q; 0 is the argmax of Q"""
    by: str
    greedy_weight: float = 0.0
    """added to the log prior of the policy's greedy reply"""
    decisions: int
    """held-back decisions whose outcomes differ"""
    tasks: int
    """their tasks"""
    curve: tuple[TauOutcome, ...]


class Ranking(Answer):
    """The documents from the highest Q to the lowest."""

    id: str
    model: str
    results: tuple[RankedDocument, ...]
    usage: RerankUsage


class ScoredCandidate(Answer):
    """A candidate and its Q."""

    message: Message
    q_value: float | None
    """null if it was not scored; see `reason`"""
    prior: float
    """
    the policy's preference: the smoothed share of the draws with the candidate's effect, or its
    share of the likelihood
    """
    posterior: float | None
    """share of the candidate's effect by Q and the prior; null if it was not the reason"""
    policy: str | None = None
    """that drew it; absent unless several policies drew"""
    verdicts: dict[str, float] | None = None
    """digit from 0 to 9 by each of the judge's criteria; absent without criteria"""
    judge_reason: str | None = None
    """the judge's reason for the verdicts, in its words; absent with them"""


class ScoredItem(ScoredItemBase):
    """Q of every candidate of one history, in the request's order."""

    scores: tuple[Score, ...]
    chosen: int
    reason: str
    tau: float | None = None
    """temperature of Q in the posterior; absent if it was not the reason"""
    unguided_reason: str | None = None
    """
    why `chosen` is the likeliest candidate, or the first, and not that of the highest Q; absent
    if it is
    """
    domain_distance: float | None = None
    """
    distance of the state from those that the Q model was trained on, 1 being the limit; absent
    where nothing measured it
    """
    window: Window | None = None
    """
    present if the Q model read a window of a history that is longer than it takes
    (`long_history`)
    """
    usage: ScoreUsage


class Scores(ScoredItem):
    """Q of every candidate, the version that scored, and the timings."""

    q_model: str
    q_model_version: str
    judge: bool = False
    """
    true if a judge gave the Q-values: a prompted chat model, not a trained Q model; the version
    of a judge begins with `judge-`
    """
    timings_ms: ScoreTimings


class ChatChoice(Answer):
    """One of the best candidates."""

    index: int
    """its rank; 0 is the best"""
    message: ChatMessage
    logprobs: dict[str, Any] | None = None
    finish_reason: str
    """`stop`, `length`, `tool_calls` or the upstream's own"""


class ChatChunk(ChunkBase):
    """One part of a streamed completion.

    The last chunk with choices carries the guidance; with `include_usage` one more, without choices, carries the usage.
    """

    id: str
    created: int = 0
    model: str
    choices: tuple[ChatChunkChoice, ...]
    usage: ChatUsage | None = None
    system_fingerprint: str | None = None
    qguide: ChatGuidance | None = None


class ChatCompletion(CompletionBase):
    """OpenAI's chat completion with the best candidates as its choices, and the guidance."""

    id: str
    created: int = 0
    """Unix time in seconds"""
    model: str
    """name of the policy"""
    choices: tuple[ChatChoice, ...]
    usage: ChatUsage
    system_fingerprint: str | None = None
    """as an upstream gave it"""
    qguide: ChatGuidance


class Decision(Answer):
    """The chosen action and the candidates it was chosen from."""

    q_model: str
    q_model_version: str
    judge: bool = False
    """
    true if a judge gave the Q-values: a prompted chat model, not a trained Q model; the version
    of a judge begins with `judge-`
    """
    chosen: int
    """index of the chosen candidate"""
    reason: str
    guided: bool = True
    """true if a Q model chose among different candidates"""
    unguided_reason: str | None
    """why no Q model has chosen"""
    domain_distance: float | None = None
    """
    distance of the state from those that the Q model was trained on, 1 being the limit; absent
    where nothing measured it
    """
    prior_by: str
    """source of the prior"""
    tau: float | None
    """temperature of Q in the posterior; null where Q alone chose, or none did"""
    draws_saved: int = 0
    """candidates that `adaptive`, `until_decided` or `max_wait_s` did without"""
    perturbed: int = 0
    """candidates drawn under a paraphrase"""
    warnings: tuple[str, ...] = ()
    """options that could not be applied, and why"""
    window: Window | None = None
    """
    present if the Q model read a window of a history that is longer than it takes
    (`long_history`)
    """
    threshold: ThresholdResult | None = None
    """present if the best Q was below the operator's threshold"""
    policy: str
    policies: tuple[PolicyUsage, ...] | None = None
    """of each policy, where several drew; absent otherwise"""
    cost: StepCost | None = None
    """present if the operator's prices or the upstream tell something of it"""
    timings_ms: Timings
    action: str
    """content of the chosen candidate"""
    candidates: tuple[ScoredCandidate, ...]
    usage: Usage


class ModelCard(Answer):
    """A served model and the metadata of its checkpoint."""

    id: str
    """name for requests; a Q model's is `name@version`"""
    type: Literal["model"] = "model"
    """Anthropic's name of `object`"""
    display_name: str
    """for Anthropic's clients: the id"""
    kind: str
    name: str
    version: str | None
    """null for the policy"""
    created: int = 0
    """Unix time in seconds at which this server started"""
    created_at: str
    """for Anthropic's clients: `created` as a date"""
    owned_by: str = ""
    """the upstream's name, or qguide"""
    source: str
    default: bool
    """true if requests that name no model can get it"""
    context: int | None
    """context length in tokens; null if unknown"""
    max_model_len: int | None
    """for vLLM's clients: `context`"""
    max_input_tokens: int | None
    """for Anthropic's clients: `context`"""
    checkpoint: str | None
    """the name in its manifest"""
    environment: str | None
    """the environment it was trained on"""
    read_at: str | None = None
    """
    position at which Q is read: `last_token` of the action, after its `observation`, or all
    `action_tokens`; null for a policy and a fake
    """
    target: str | None
    """regression target of its Q: q, avg or reward"""
    metrics: dict[str, float]
    """metrics of its training"""
    licensed: bool | None
    """
    whether its choices were shown to be above the agent's own on tasks that it did not learn
    from; null where nothing judged them
    """
    licence: str | None
    """the figures behind `licensed`; null where nothing judged its choices"""
    prior: PriorCard | None = None
    """
    present if the Q model was fitted to choose by Q and the policy's preference, which it then
    does by default
    """
    judge: JudgeCard | None
    """the prompted chat model, if the Q model is a judge; null for any other model"""


class ModelList(Answer):
    """All served models, and the aliases of the Q models.

    Model pickers of chat clients show `data`, so it has only what can be chatted with.
    """

    data: tuple[ModelCard, ...]
    """the policies, which chat"""
    q_models: tuple[ModelCard, ...]
    """the Q models, which score and rerank"""
    aliases: dict[str, str]
    """alias -> Q model"""
    splits: dict[str, dict[str, float]]
    """alias -> several Q models and the share of episodes for each"""
    shadows: dict[str, str]
    """Q model -> the shadow that scores its requests a second time"""


class ScoreBatch(Answer):
    """One answer per item, in the request's order."""

    q_model: str
    q_model_version: str
    judge: bool = False
    """
    true if a judge gave the Q-values: a prompted chat model, not a trained Q model; the version
    of a judge begins with `judge-`
    """
    items: tuple[ScoredItem, ...]
    timings_ms: ScoreTimings
    """`score` is that of the slowest item"""
