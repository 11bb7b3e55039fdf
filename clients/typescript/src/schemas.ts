/**
 * Types of the wire.
 *
 * Generated from the server's OpenAPI document by `make client-types`; do not edit.
 */

/** @description Options of drawing candidates and scoring them. */
export type ActOptions = ModelOptions & {
    /** @description `argmax` chooses the highest Q, `posterior` the highest Q / tau + log prior; null takes the server's setting, else `posterior` if `tau` is given or the Q model's manifest has a fitted one */
    selection?: ("argmax" | "posterior") | null;
    /** @description temperature of Q in the posterior: at 0 Q alone counts, and the larger it is, the more the prior does; null takes the server's setting, else the Q model's fitted one */
    tau?: number | null;
    /** @description answer to a state of another kind than the Q model was trained on: `unguided` takes the likeliest candidate, `guide` that of the Q model; null takes the server's setting */
    out_of_domain?: ("unguided" | "guide") | null;
    /** @description share of a long history's tokens that a window has to read; less is out of the Q model's domain, see `out_of_domain`; null takes the server's setting */
    least_read?: number | null;
    /** @description several policies that draw the step's candidates, n each, in place of one; one that fails costs its own candidates only; in a header `large=2,small=3`, or without n `large,small` */
    policies?: readonly PolicyShare[] | null;
    /** @description answer if no Q is available: `error`, or `first` for the likeliest candidate: the one drawn most often, of equal ones the first; null takes the server's setting */
    fallback?: ("error" | "first") | null;
    /** @description answer if the history is longer than the Q model takes: `error`, `first` for the likeliest candidate, or `window` to score after the task and the newest turns that fit; null takes the server's setting */
    long_history?: ("error" | "first" | "window") | null;
    /** @description the prior: `votes`, smoothed shares of the draws, or the policy's own `likelihood`, or `likelihood-per-token`; votes where a candidate has no logprob; null takes the server's setting, else what the Q model was fitted with */
    prior?: ("votes" | "likelihood" | "likelihood-per-token") | null;
    /** @description the outcome of the episode if it had ended before this step: a total, and not what the last action added; null where that is unknown */
    earned?: number | null;
    /** @description draw in small batches until a candidate's Q exceeds the previous step's, at most num_candidates; needs an episode or previous_q; null takes the server's setting for steps of an episode */
    adaptive?: boolean | null;
    /** @description for adaptive: Q of the previous action; null takes it from the episode */
    previous_q?: number | null;
    /**
     * @description draw in small batches, at most num_candidates, and stop once no further draw can change the choice
     * @default false
     */
    until_decided?: boolean;
    /** @description answer after this time with the best of the candidates that have come, at least one, or earlier if none of the others could change the choice; null waits for all */
    max_wait_s?: number | null;
    /**
     * @description draw all candidates but the first from paraphrases of the task
     * @default false
     */
    perturb?: boolean;
    /** @description for perturb: the part of the first user message to paraphrase; null detects it */
    task?: string | null;
    /**
     * @description M, how many candidates to draw
     * @default 5
     */
    num_candidates?: number;
    /**
     * @description null is the policy's default, which reasoning models need
     * @default 0.7
     */
    temperature?: number | null;
    /**
     * @description draw the first candidate at temperature 0, unless temperature is null
     * @default true
     */
    greedy_candidate?: boolean;
    /**
     * @description of each candidate; null is the policy's default
     * @default 128
     */
    max_tokens?: number | null;
    seed?: number | null;
    /** @description null takes the default */
    policy?: string | null;
};

/** @description One attempt, as it is now. */
export interface Attempt {
    episode_id: string;
    /** @description its history with its latest action, and what that was answered if it is known; null compares the Q of its episode's latest step */
    messages?: readonly Message[] | null;
    /** @description its cost so far; null counts its episode's steps */
    tokens?: number | null;
    /**
     * @description false if it has ended or was stopped: only its tokens count then
     * @default true
     */
    running?: boolean;
}

/** @description Options of a comparison of attempts. */
export interface AttemptsOptions {
    /** @description most attempts that go on; null is half of those that run, rounded up */
    go_on?: number | null;
    /** @description of all attempts together: only as many go on as the rest pays one more turn */
    budget_tokens?: number | null;
    /** @description a name, `name@version` or alias; null takes the default */
    q_model?: string | null;
    /** @description answer to a state of another kind than the Q model was trained on: `unguided` takes the likeliest candidate, `guide` that of the Q model; null takes the server's setting */
    out_of_domain?: ("unguided" | "guide") | null;
    /** @description share of a long history's tokens that a window has to read; less is out of the Q model's domain, see `out_of_domain`; null takes the server's setting */
    least_read?: number | null;
    /** @description answer if the history is longer than the Q model takes: `error`, or `window` to score after the task and the newest turns that fit; null takes the server's setting */
    long_history?: ("error" | "window") | null;
}

/** @description Options of scoring a batch. */
export type BatchOptions = ModelOptions & {
    /** @description `argmax` chooses the highest Q, `posterior` the highest Q / tau + log prior; null takes the server's setting, else `posterior` if `tau` is given or the Q model's manifest has a fitted one */
    selection?: ("argmax" | "posterior") | null;
    /** @description temperature of Q in the posterior: at 0 Q alone counts, and the larger it is, the more the prior does; null takes the server's setting, else the Q model's fitted one */
    tau?: number | null;
    /** @description answer to a state of another kind than the Q model was trained on: `unguided` takes the likeliest candidate, `guide` that of the Q model; null takes the server's setting */
    out_of_domain?: ("unguided" | "guide") | null;
    /** @description share of a long history's tokens that a window has to read; less is out of the Q model's domain, see `out_of_domain`; null takes the server's setting */
    least_read?: number | null;
    /** @description answer if the history is longer than the Q model takes: `error`, or `window` to score after the task and the newest turns that fit; null takes the server's setting */
    long_history?: ("error" | "window") | null;
};

/** @description Name and arguments of a called function. */
export interface CalledFunction {
    name: string;
    /** @description JSON, as the model wrote it */
    arguments: string;
}

/** @description Name and input of a called custom tool. */
export interface CalledTool {
    name: string;
    /** @description any text */
    input: string;
}

/** @description A possible next action, and what trying it answered. */
export interface CandidateMessage {
    /** @enum {string} */
    role: "system" | "developer" | "user" | "assistant" | "tool";
    /** @description text, or parts of type text; null beside tool calls */
    content?: string | readonly ContentPart[] | null;
    tool_calls?: readonly (ToolCall | CustomToolCall)[] | null;
    tool_call_id?: string | null;
    /** @description what the environment answered: a text, or the tools' results as messages; needed by a Q model whose `read_at` is `observation`, read by one without a network, refused by any other */
    observation?: string | readonly Message[] | null;
}

/** @description A candidate and its Q. */
export interface ChatCandidate {
    message: ChatMessage;
    q_value: number | null;
    prior: number;
    posterior: number | null;
    finish_reason: string;
    /** @description that drew it; present if several policies drew */
    policy?: string;
    /** @description digit from 0 to 9 by each of the judge's criteria; absent without criteria */
    verdicts?: {
        [key: string]: number;
    };
    /** @description the judge's reason for the verdicts, in its words; absent with them */
    judge_reason?: string;
}

/** @description One of the best candidates. */
export interface ChatChoice {
    /** @description its rank; 0 is the best */
    index: number;
    message: ChatMessage;
    logprobs: {
        [key: string]: unknown;
    } | null;
    /** @description `stop`, `length`, `tool_calls` or the upstream's own */
    finish_reason: string;
}

/**
 * @description One part of a streamed completion.
 *
 *     The last chunk with choices carries the guidance; with `include_usage` one more, without choices, carries the usage.
 */
export interface ChatChunk {
    id: string;
    /** @constant */
    object: "chat.completion.chunk";
    created: number;
    model: string;
    choices: readonly ChatChunkChoice[];
    usage?: ChatUsage | null;
    system_fingerprint?: string;
    qguide?: ChatGuidance;
}

/** @description New part of one choice. */
export interface ChatChunkChoice {
    index: number;
    delta: ChatDelta;
    logprobs: {
        [key: string]: unknown;
    } | null;
    finish_reason: string | null;
}

/** @description OpenAI's chat completion with the best candidates as its choices, and the guidance. */
export interface ChatCompletion {
    id: string;
    /** @constant */
    object: "chat.completion";
    /** @description Unix time in seconds */
    created: number;
    /** @description name of the policy */
    model: string;
    choices: readonly ChatChoice[];
    usage: ChatUsage;
    /** @description as an upstream gave it */
    system_fingerprint?: string;
    qguide: ChatGuidance;
}

/** @description New part of a reply. */
export interface ChatDelta {
    /** @constant */
    role?: "assistant";
    content?: string | null;
    refusal?: string;
    tool_calls?: readonly ToolCallPiece[];
}

/** @description The chosen candidate, the reason for it and what it cost. */
export interface ChatGuidance {
    q_model: string;
    q_model_version: string;
    /**
     * @description true if a judge gave the Q-values: a prompted chat model, not a trained Q model; the version of a judge begins with `judge-`
     * @default false
     */
    judge?: boolean;
    /** @description index of the chosen candidate */
    chosen: number;
    /** @enum {string} */
    reason: "highest_q" | "tied_highest_q" | "highest_posterior" | "rules" | "likeliest" | "only_candidate" | "unanimous" | "fallback" | "explored";
    /** @description true if a Q model chose among different candidates */
    guided: boolean;
    /** @description why no Q model has chosen */
    unguided_reason: string | null;
    /** @description distance of the state from those that the Q model was trained on, 1 being the limit; absent where nothing measured it */
    domain_distance?: number | null;
    /**
     * @description source of the prior
     * @enum {string}
     */
    prior_by: "votes" | "likelihood" | "likelihood-per-token";
    /** @description temperature of Q in the posterior; null where Q alone chose, or none did */
    tau: number | null;
    /** @description candidates that `adaptive`, `until_decided` or `max_wait_s` did without */
    draws_saved: number;
    /** @description candidates drawn under a paraphrase */
    perturbed: number;
    /** @description options that could not be applied, and why */
    warnings: readonly string[];
    /** @description present if the Q model read a window of a history that is longer than it takes (`long_history`) */
    window?: Window;
    /** @description present if the best Q was below the operator's threshold */
    threshold?: ThresholdResult;
    policy: string;
    /** @description of each policy, where several drew; absent otherwise */
    policies?: readonly PolicyUsage[];
    /** @description present if the operator's prices or the upstream tell something of it */
    cost?: StepCost;
    timings_ms: Timings;
    /** @description indices of the returned candidates, the best first */
    returned: readonly number[];
    /** @description Q of every candidate; null if no Q was available */
    q_values: readonly number[] | null;
    /** @description of every candidate, the policy's preference: the smoothed share of the draws with the candidate's effect, or its share of the likelihood */
    prior: readonly number[];
    /** @description of every candidate, share of the candidate's effect by Q and the prior; null if it was not the reason */
    posterior: readonly number[] | null;
    /** @description number of candidates drawn */
    num_candidates: number;
    /** @description number of different candidates */
    distinct_candidates: number;
    usage: StageUsage;
    /** @description present if the request belongs to one */
    episode_id?: string;
    /** @description all candidates; present if `return_candidates` was set */
    candidates?: readonly ChatCandidate[];
}

/** @description The assistant's reply: a text, tool calls or both. */
export interface ChatMessage {
    /** @constant */
    role: "assistant";
    /** @description null beside tool calls */
    content: string | null;
    refusal?: string | null;
    tool_calls?: readonly (ToolCall | CustomToolCall)[];
}

/** @description Parameters of a chat completion that the server itself reads. */
export interface ChatParameters {
    /** @description the policy; null takes the default */
    model?: string | null;
    /** @description number of candidates to return, best first */
    n?: number | null;
    temperature?: number | null;
    max_tokens?: number | null;
    max_completion_tokens?: number | null;
    seed?: number | null;
    qguide?: GuidanceOptions;
}

/** @description One message of a conversation, passed on to an upstream unchanged. */
export interface ChatTurn {
    role: ("system" | "developer" | "user" | "assistant" | "tool") | "function";
    content?: string | readonly ContentPart[] | null;
    tool_calls?: readonly (ToolCall | CustomToolCall)[] | null;
    tool_call_id?: string | null;
    /** @description OpenAI's deprecated form of a tool call */
    function_call?: CalledFunction | null;
}

/** @description Tokens of the policy, for all candidates together. */
export interface ChatUsage {
    prompt_tokens: number;
    completion_tokens: number;
    total_tokens: number;
    prompt_tokens_details: PromptTokensDetails;
    /** @description as an upstream gave them, for example `reasoning_tokens` */
    completion_tokens_details?: {
        [key: string]: number;
    };
}

/** @description A part of a message's content; only text can be read. */
export interface ContentPart {
    type: string;
    text?: string | null;
}

/** @description A custom tool's name and its whole input. */
export interface CustomDelta {
    name: string;
    input: string;
}

/** @description One call of a custom tool in an assistant message. */
export interface CustomToolCall {
    id: string;
    /** @constant */
    type: "custom";
    custom: CalledTool;
}

/** @description The chosen action and the candidates it was chosen from. */
export interface Decision {
    q_model: string;
    q_model_version: string;
    /**
     * @description true if a judge gave the Q-values: a prompted chat model, not a trained Q model; the version of a judge begins with `judge-`
     * @default false
     */
    judge?: boolean;
    /** @description index of the chosen candidate */
    chosen: number;
    /** @enum {string} */
    reason: "highest_q" | "tied_highest_q" | "highest_posterior" | "rules" | "likeliest" | "only_candidate" | "unanimous" | "fallback" | "explored";
    /** @description true if a Q model chose among different candidates */
    guided: boolean;
    /** @description why no Q model has chosen */
    unguided_reason: string | null;
    /** @description distance of the state from those that the Q model was trained on, 1 being the limit; absent where nothing measured it */
    domain_distance?: number | null;
    /**
     * @description source of the prior
     * @enum {string}
     */
    prior_by: "votes" | "likelihood" | "likelihood-per-token";
    /** @description temperature of Q in the posterior; null where Q alone chose, or none did */
    tau: number | null;
    /** @description candidates that `adaptive`, `until_decided` or `max_wait_s` did without */
    draws_saved: number;
    /** @description candidates drawn under a paraphrase */
    perturbed: number;
    /** @description options that could not be applied, and why */
    warnings: readonly string[];
    /** @description present if the Q model read a window of a history that is longer than it takes (`long_history`) */
    window?: Window;
    /** @description present if the best Q was below the operator's threshold */
    threshold?: ThresholdResult;
    policy: string;
    /** @description of each policy, where several drew; absent otherwise */
    policies?: readonly PolicyUsage[];
    /** @description present if the operator's prices or the upstream tell something of it */
    cost?: StepCost;
    timings_ms: Timings;
    /** @description content of the chosen candidate */
    action: string;
    candidates: readonly ScoredCandidate[];
    usage: Usage;
}

/** @description A drawn candidate, the assistant's turn; its content is never in parts. */
export interface DrawnMessage {
    /** @enum {string} */
    role: "system" | "developer" | "user" | "assistant" | "tool";
    /** @description null beside tool calls */
    content?: string | null;
    tool_calls?: readonly (ToolCall | CustomToolCall)[] | null;
    tool_call_id?: string | null;
}

/** @description New text of a function call. */
export interface FunctionDelta {
    name?: string;
    arguments: string;
}

/** @description Options under `qguide` in the body of a chat completion. */
export interface GuidanceOptions {
    /** @description a name, `name@version` or alias; null takes the default */
    q_model?: string | null;
    /** @description `argmax` chooses the highest Q, `posterior` the highest Q / tau + log prior; null takes the server's setting, else `posterior` if `tau` is given or the Q model's manifest has a fitted one */
    selection?: ("argmax" | "posterior") | null;
    /** @description temperature of Q in the posterior: at 0 Q alone counts, and the larger it is, the more the prior does; null takes the server's setting, else the Q model's fitted one */
    tau?: number | null;
    /** @description answer to a state of another kind than the Q model was trained on: `unguided` takes the likeliest candidate, `guide` that of the Q model; null takes the server's setting */
    out_of_domain?: ("unguided" | "guide") | null;
    /** @description share of a long history's tokens that a window has to read; less is out of the Q model's domain, see `out_of_domain`; null takes the server's setting */
    least_read?: number | null;
    /** @description several policies that draw the step's candidates, n each, in place of one; one that fails costs its own candidates only; in a header `large=2,small=3`, or without n `large,small` */
    policies?: readonly PolicyShare[] | null;
    /** @description answer if no Q is available: `error`, or `first` for the likeliest candidate: the one drawn most often, of equal ones the first; null takes the server's setting */
    fallback?: ("error" | "first") | null;
    /** @description answer if the history is longer than the Q model takes: `error`, `first` for the likeliest candidate, or `window` to score after the task and the newest turns that fit; null takes the server's setting */
    long_history?: ("error" | "first" | "window") | null;
    /** @description the prior: `votes`, smoothed shares of the draws, or the policy's own `likelihood`, or `likelihood-per-token`; votes where a candidate has no logprob; null takes the server's setting, else what the Q model was fitted with */
    prior?: ("votes" | "likelihood" | "likelihood-per-token") | null;
    /** @description identifies the episode that this step belongs to; with a split alias all its steps use the same Q model */
    episode_id?: string | null;
    /** @description the outcome of the episode if it had ended before this step: a total, and not what the last action added; null where that is unknown */
    earned?: number | null;
    /** @description draw in small batches until a candidate's Q exceeds the previous step's, at most num_candidates; needs an episode or previous_q; null takes the server's setting for steps of an episode */
    adaptive?: boolean | null;
    /** @description for adaptive: Q of the previous action; null takes it from the episode */
    previous_q?: number | null;
    /**
     * @description draw in small batches, at most num_candidates, and stop once no further draw can change the choice
     * @default false
     */
    until_decided?: boolean;
    /** @description answer after this time with the best of the candidates that have come, at least one, or earlier if none of the others could change the choice; null waits for all */
    max_wait_s?: number | null;
    /**
     * @description draw all candidates but the first from paraphrases of the task
     * @default false
     */
    perturb?: boolean;
    /** @description for perturb: the part of the first user message to paraphrase; null detects it */
    task?: string | null;
    /** @description M, how many candidates to draw; null takes the server's default */
    num_candidates?: number | null;
    /** @description of the candidates; overrides the body's `temperature` */
    temperature?: number | null;
    /**
     * @description include all candidates and their Q in the answer
     * @default false
     */
    return_candidates?: boolean;
}

/** @description Requests to a judge and their tokens, as its upstream counts them. */
export interface JudgeCalls {
    /** @description requests that the upstream answered */
    calls: number;
    /** @description requests that an earlier answer made unnecessary */
    cached_calls: number;
    prompt_tokens: number;
    completion_tokens: number;
}

/** @description The chat model behind a judge, and how it is asked. */
export interface JudgeCard {
    /** @description the model's name at its upstream */
    model: string;
    /** @enum {string} */
    mode: "score" | "rank";
}

/** @description An attempt's value, and the verdict. */
export interface JudgedAttempt {
    episode_id: string;
    /** @description null if it was not compared, or no Q is known */
    value: number | null;
    /** @description false if the rule `validity`, where it stands before the Q model, finds that the latest action failed: such attempts come after all others */
    valid: boolean;
    tokens: number;
    /**
     * @description `best` goes on; `behind` is worth less than those; `budget`: the rest does not pay its next turn; `ended` was not running
     * @enum {string}
     */
    verdict: "best" | "behind" | "budget" | "ended";
}

/** @description One message in OpenAI's format. */
export interface Message {
    /** @enum {string} */
    role: "system" | "developer" | "user" | "assistant" | "tool";
    /** @description text, or parts of type text; null beside tool calls */
    content?: string | readonly ContentPart[] | null;
    tool_calls?: readonly (ToolCall | CustomToolCall)[] | null;
    tool_call_id?: string | null;
}

/** @description A served model and the metadata of its checkpoint. */
export interface ModelCard {
    /** @description name for requests; a Q model's is `name@version` */
    id: string;
    /**
     * @default model
     * @constant
     */
    object?: "model";
    /**
     * @description Anthropic's name of `object`
     * @default model
     * @constant
     */
    type?: "model";
    /** @description for Anthropic's clients: the id */
    display_name: string;
    /** @enum {string} */
    kind: "policy" | "q_model";
    name: string;
    /** @description null for the policy */
    version: string | null;
    /** @description Unix time in seconds at which this server started */
    created: number;
    /** @description for Anthropic's clients: `created` as a date */
    created_at: string;
    /** @description the upstream's name, or qguide */
    owned_by: string;
    /** @enum {string} */
    source: "embedded" | "scripted" | "checkpoint" | "imported" | "vllm" | "judge" | "upstream" | "rules" | "none";
    /** @description true if requests that name no model can get it */
    default: boolean;
    /** @description context length in tokens; null if unknown */
    context: number | null;
    /** @description for vLLM's clients: `context` */
    max_model_len: number | null;
    /** @description for Anthropic's clients: `context` */
    max_input_tokens: number | null;
    /** @description the name in its manifest */
    checkpoint: string | null;
    /** @description the environment it was trained on */
    environment: string | null;
    /** @description position at which Q is read: `last_token` of the action, after its `observation`, or all `action_tokens`; null for a policy and a fake */
    read_at: string | null;
    /** @description regression target of its Q: q, avg or reward */
    target: string | null;
    /** @description metrics of its training */
    metrics: {
        [key: string]: number;
    };
    /** @description whether its choices were shown to be above the agent's own on tasks that it did not learn from; null where nothing judged them */
    licensed: boolean | null;
    /** @description the figures behind `licensed`; null where nothing judged its choices */
    licence: string | null;
    /** @description present if the Q model was fitted to choose by Q and the policy's preference, which it then does by default */
    prior?: PriorCard | null;
    /** @description the prompted chat model, if the Q model is a judge; null for any other model */
    judge: JudgeCard | null;
}

/**
 * @description All served models, and the aliases of the Q models.
 *
 *     Model pickers of chat clients show `data`, so it has only what can be chatted with.
 */
export interface ModelList {
    /**
     * @default list
     * @constant
     */
    object?: "list";
    /** @description the policies, which chat */
    data: readonly ModelCard[];
    /** @description the Q models, which score and rerank */
    q_models: readonly ModelCard[];
    /** @description alias -> Q model */
    aliases: {
        [key: string]: string;
    };
    /** @description alias -> several Q models and the share of episodes for each */
    splits: {
        [key: string]: {
            [key: string]: number;
        };
    };
    /** @description Q model -> the shadow that scores its requests a second time */
    shadows: {
        [key: string]: string;
    };
}

/** @description Options of a request that only scores. */
export interface ModelOptions {
    /** @description a name, `name@version` or alias; null takes the default */
    q_model?: string | null;
    /** @description identifies the episode that this step belongs to; with a split alias all its steps use the same Q model */
    episode_id?: string | null;
}

/** @description A closed episode. */
export interface Outcome {
    episode_id: string;
    reward: number;
    /** @description number of distinct states that were guided */
    steps: number;
    /** @description true if it was written to a file for the offline jobs */
    recorded: boolean;
    /** @description why it was not recorded */
    reason: string | null;
}

/** @description Options of an episode's outcome. */
export interface OutcomeOptions {
    /**
     * @description false if a step limit truncated the episode
     * @default true
     */
    terminated?: boolean;
    /** @description the last action, if it was not the chosen one */
    action?: string | null;
    /** @description the observation after the last action */
    observation?: string;
}

/** @description Tokens spent on paraphrases of the task. */
export interface ParaphraseUsage {
    prompt_tokens: number;
    completion_tokens: number;
}

/** @description A policy, and how many of a step's candidates it draws. */
export interface PolicyShare {
    name: string;
    /** @description null for all policies lets a server that learns split num_candidates by the outcomes of earlier episodes */
    n?: number | null;
}

/** @description Draws of one of several policies, and their cost. */
export interface PolicyUsage {
    name: string;
    candidates: number;
    prompt_tokens: number;
    completion_tokens: number;
    /** @description null where neither prices nor the upstream tell it */
    cost: number | null;
    /** @description why it drew none, or no more; null if nothing failed */
    error: string | null;
}

/** @description Choice by Q and the policy's preference, fitted on held-back decisions. */
export interface PriorCard {
    /** @description temperature of Q; 0 is the argmax of Q */
    tau: number;
    /** @enum {string} */
    by: "votes" | "likelihood" | "likelihood-per-token";
    /**
     * @description added to the log prior of the policy's greedy reply
     * @default 0
     */
    greedy_weight?: number;
    /** @description held-back decisions whose outcomes differ */
    decisions: number;
    /** @description their tasks */
    tasks: number;
    curve: readonly TauOutcome[];
}

/** @description Details of the prompt's tokens. */
export interface PromptTokensDetails {
    /** @description tokens that an upstream had cached */
    cached_tokens: number;
    /** @description tokens that it put into its cache, if it says so */
    cache_write_tokens?: number;
}

/** @description A document's place and its Q. */
export interface RankedDocument {
    index: number;
    /** @description 1 / (1 + exp(-q_value)): a ranking, not a probability; or the raw Q if `raw_scores` or `use_activation` asked for it */
    relevance_score: number;
    /** @description ours: the raw Q */
    q_value: number;
}

/** @description The documents from the highest Q to the lowest. */
export interface Ranking {
    id: string;
    /**
     * @default rerank
     * @constant
     */
    object?: "rerank";
    model: string;
    results: readonly RankedDocument[];
    usage: RerankUsage;
}

/** @description Health of the server. */
export interface Readiness {
    /** @enum {string} */
    status: "ok" | "unavailable";
    reason?: string | null;
    /** @description `redis`: ok, or down while the server falls back to memory; absent without Redis. `upstream NAME`: ok, or its problem */
    details?: {
        [key: string]: string;
    };
}

/** @description Options of a reranking. */
export type RerankOptions = ModelOptions & {
    /** @description Cohere's: the fields of documents that are objects, in the order in which they are read; null reads `text` */
    rank_fields?: readonly string[] | null;
    /** @description number of documents to return, best first; null returns all */
    top_n?: number | null;
    /** @description Infinity's: true puts the raw Q into `relevance_score`; if it is sent at all, `document` is a plain text, as Infinity's clients expect */
    raw_scores?: boolean | null;
    /** @description vLLM's: false is raw_scores */
    use_activation?: boolean | null;
};

/** @description Tokens of history and documents; `cached_tokens` is ours. */
export interface RerankUsage {
    prompt_tokens: number;
    total_tokens: number;
    cached_tokens: number;
}

/** @description Tokens spent on drawing the candidates. */
export type SampleUsage = ParaphraseUsage & {
    /** @description tokens of the prompt that were cached */
    cached_tokens: number;
};

/** @description Q of the candidate at `index` of the request. */
export interface Score {
    index: number;
    q_value: number;
    /** @description the policy's preference: the smoothed share of the draws with the candidate's effect, or its share of the likelihood; absent without `counts` and `logprobs` */
    prior?: number | null;
    /** @description share of the candidate's effect by Q and the prior; absent if it was not the reason */
    posterior?: number | null;
    /** @description digit from 0 to 9 by each of the judge's criteria; absent without criteria */
    verdicts?: {
        [key: string]: number;
    } | null;
    /** @description the judge's reason for the verdicts, in its words; absent with them */
    judge_reason?: string | null;
}

/** @description One answer per item, in the request's order. */
export interface ScoreBatch {
    q_model: string;
    q_model_version: string;
    /**
     * @description true if a judge gave the Q-values: a prompted chat model, not a trained Q model; the version of a judge begins with `judge-`
     * @default false
     */
    judge?: boolean;
    items: readonly ScoredItem[];
    /** @description `score` is that of the slowest item */
    timings_ms: ScoreTimings;
}

/** @description An agent's history and the caller's own candidates. */
export interface ScoreItem {
    messages: readonly Message[];
    /** @description possible next actions: texts or assistant messages, all different */
    candidates: readonly (string | CandidateMessage)[];
    /** @description how often each candidate was drawn, for its prior */
    counts?: readonly number[] | null;
    /** @description log-likelihood of each candidate by its policy; in place of `counts` */
    logprobs?: readonly number[] | null;
    /** @description what the candidates may call, in OpenAI's shape; only the rule `validity` reads it */
    tools?: readonly {
        [key: string]: unknown;
    }[] | null;
    /** @description index of the candidate that the policy gave at temperature 0; beside `counts` or `logprobs` it counts as much as the Q model's fit found right */
    greedy?: number | null;
}

/** @description Options of scoring candidates. */
export type ScoreOptions = ModelOptions & {
    /** @description how often each candidate was drawn, for its prior */
    counts?: readonly number[] | null;
    /** @description log-likelihood of each candidate by its policy; in place of `counts` */
    logprobs?: readonly number[] | null;
    /** @description what the candidates may call, in OpenAI's shape; only the rule `validity` reads it */
    tools?: readonly {
        [key: string]: unknown;
    }[] | null;
    /** @description index of the candidate that the policy gave at temperature 0; beside `counts` or `logprobs` it counts as much as the Q model's fit found right */
    greedy?: number | null;
    /** @description `argmax` chooses the highest Q, `posterior` the highest Q / tau + log prior; null takes the server's setting, else `posterior` if `tau` is given or the Q model's manifest has a fitted one */
    selection?: ("argmax" | "posterior") | null;
    /** @description temperature of Q in the posterior: at 0 Q alone counts, and the larger it is, the more the prior does; null takes the server's setting, else the Q model's fitted one */
    tau?: number | null;
    /** @description answer to a state of another kind than the Q model was trained on: `unguided` takes the likeliest candidate, `guide` that of the Q model; null takes the server's setting */
    out_of_domain?: ("unguided" | "guide") | null;
    /** @description share of a long history's tokens that a window has to read; less is out of the Q model's domain, see `out_of_domain`; null takes the server's setting */
    least_read?: number | null;
    /** @description answer if the history is longer than the Q model takes: `error`, or `window` to score after the task and the newest turns that fit; null takes the server's setting */
    long_history?: ("error" | "window") | null;
    /** @description the outcome of the episode if it had ended before this step: a total, and not what the last action added; null where that is unknown */
    earned?: number | null;
};

/** @description Milliseconds per stage, including waits. */
export interface ScoreTimings {
    score: number;
    total: number;
}

/** @description Tokens that the scorer computed or found in its cache. */
export interface ScoreUsage {
    scored_tokens: number;
    cached_tokens: number;
    /** @description requests to the judge that gave the Q-values, whose tokens are included in the others; absent for a trained Q model */
    judge?: JudgeCalls | null;
}

/** @description A candidate and its Q. */
export interface ScoredCandidate {
    message: DrawnMessage;
    /** @description null if it was not scored; see `reason` */
    q_value: number | null;
    /** @description the policy's preference: the smoothed share of the draws with the candidate's effect, or its share of the likelihood */
    prior: number;
    /** @description share of the candidate's effect by Q and the prior; null if it was not the reason */
    posterior: number | null;
    /** @description that drew it; absent unless several policies drew */
    policy?: string | null;
    /** @description digit from 0 to 9 by each of the judge's criteria; absent without criteria */
    verdicts?: {
        [key: string]: number;
    } | null;
    /** @description the judge's reason for the verdicts, in its words; absent with them */
    judge_reason?: string | null;
}

/** @description Q of every candidate of one history, in the request's order. */
export interface ScoredItem {
    scores: readonly Score[];
    chosen: number;
    /** @enum {string} */
    reason: "highest_q" | "tied_highest_q" | "highest_posterior" | "rules" | "likeliest" | "only_candidate" | "unanimous" | "fallback" | "explored";
    /** @description temperature of Q in the posterior; absent if it was not the reason */
    tau?: number | null;
    /** @description why `chosen` is the likeliest candidate, or the first, and not that of the highest Q; absent if it is */
    unguided_reason?: string | null;
    /** @description distance of the state from those that the Q model was trained on, 1 being the limit; absent where nothing measured it */
    domain_distance?: number | null;
    /** @description present if the Q model read a window of a history that is longer than it takes (`long_history`) */
    window?: Window | null;
    usage: ScoreUsage;
}

/** @description Q of every candidate, the version that scored, and the timings. */
export type Scores = ScoredItem & {
    q_model: string;
    q_model_version: string;
    /**
     * @description true if a judge gave the Q-values: a prompted chat model, not a trained Q model; the version of a judge begins with `judge-`
     * @default false
     */
    judge?: boolean;
    timings_ms: ScoreTimings;
};

/** @description Tokens of each stage. */
export interface StageUsage {
    paraphrase: ParaphraseUsage;
    sample: SampleUsage;
    /** @description of actions below the operator's threshold; included in `sample` */
    threshold: ParaphraseUsage;
    score: ScoreUsage;
}

/**
 * @description Cost of a step, or of an action of it, in the currency of the operator's prices.
 *
 *     Parts that nothing tells are null.
 */
export interface StepCost {
    /** @description of all candidates, by the upstream's word or the policy's prices, at which those of an escalation count, too; paraphrases are not in it */
    sample: number | null;
    /** @description of it, what upstreams with prices read from caches */
    cached: number | null;
    /** @description of it, what they wrote to caches */
    written: number | null;
    /** @description of the judge; null for a trained Q model */
    score: number | null;
    /** @description of the parts that are known */
    total: number;
}

/** @description An action that was taken because the best Q was below the operator's threshold. */
export interface TakenAction {
    /** @enum {string} */
    action: "refine" | "escalate" | "stop";
    /**
     * @description `raised` if the best Q is no longer below the threshold; `failed` if nothing could be drawn or scored
     * @enum {string}
     */
    outcome: "raised" | "still_below" | "failed" | "stopped";
    /** @description the policy that drew; empty for `stop` */
    policy: string;
    /** @description indices of the candidates that it drew */
    candidates: readonly number[];
    /** @description best Q after it */
    best_q: number;
    prompt_tokens: number;
    completion_tokens: number;
    /** @description of drawing and scoring its candidates; present as the step's is */
    cost?: StepCost;
}

/** @description Expected outcome of a Q model's choices at one temperature. */
export interface TauOutcome {
    tau: number;
    /** @description mean label of the chosen candidates, over tasks */
    outcome: number;
    /** @description of the difference to the best temperature's */
    standard_error: number;
}

/** @description Actions of a step whose best Q was below the operator's threshold. */
export interface ThresholdResult {
    /** @description the threshold */
    below: number;
    /** @description best Q before any action */
    best_q: number;
    actions: readonly TakenAction[];
}

/** @description Milliseconds per stage of one step, including waits. */
export type Timings = ScoreTimings & {
    sample: number;
    paraphrase: number;
};

/** @description One tool call of an assistant message. */
export interface ToolCall {
    id: string;
    /**
     * @default function
     * @constant
     */
    type?: "function";
    function: CalledFunction;
}

/** @description New part of a tool call; parts with the same `index` belong to one call. */
export interface ToolCallPiece {
    index: number;
    id?: string;
    /** @enum {string} */
    type?: "function" | "custom";
    function?: FunctionDelta;
    custom?: CustomDelta;
}

/** @description Token usage of one step: drawing and scoring. */
export type Usage = ScoreUsage & {
    prompt_tokens: number;
    completion_tokens: number;
    /**
     * @description read and generated by actions below the operator's threshold; included in prompt and completion tokens
     * @default 0
     */
    threshold_tokens?: number;
    /** @description generated for paraphrases; 0 if they were cached */
    paraphrase_tokens: number;
    /** @description tokens of the prompt that an upstream had cached */
    cached_prompt_tokens: number;
};

/** @description Attempts that go on, and the reason for each that does not. */
export interface Verdicts {
    q_model: string;
    q_model_version: string;
    /**
     * @description true if a judge gave the Q-values: a prompted chat model, not a trained Q model; the version of a judge begins with `judge-`
     * @default false
     */
    judge?: boolean;
    /** @description episode ids, the best first */
    go_on: readonly string[];
    attempts: readonly JudgedAttempt[];
    spent_tokens: number;
    /** @description of the budget; null without one */
    left_tokens: number | null;
    /** @description reasons for values that are not known */
    warnings: readonly string[];
    usage: ScoreUsage;
}

/** @description Window of a history that is longer than the Q model takes. */
export interface Window {
    /** @description messages of the task, and the newest ones */
    read_messages: number;
    /** @description their tokens, counted as `left_out_tokens` */
    read_tokens: number;
    /** @description messages between them */
    left_out_messages: number;
    /** @description tokens of the messages that were left out, as the Q model's tokenizer counts them; of a judge an estimate */
    left_out_tokens: number;
}
