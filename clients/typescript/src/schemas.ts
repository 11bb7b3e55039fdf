/**
 * Types of the wire.
 *
 * Generated from the server's OpenAPI document by `make client-types`; do not edit.
 */

/** @description Options of drawing candidates and scoring them. */
export type ActOptions = ModelOptions & {
    /** @description if no Q can be given: `error`, or `first` for the first candidate; null takes the server's setting */
    fallback?: ("error" | "first") | null;
    /**
     * @description draw in small batches until Q rises over the previous step's, at most num_candidates; needs episode_id or previous_q
     * @default false
     */
    adaptive?: boolean;
    /** @description for adaptive: Q of the action that led here; null takes the episode's */
    previous_q?: number | null;
    /**
     * @description draw the candidates after the first under paraphrases of the task
     * @default false
     */
    perturb?: boolean;
    /** @description for perturb: the part of the first user message that says what to do; null finds it */
    task?: string | null;
    /**
     * @description M, how many candidates to draw
     * @default 5
     */
    num_candidates?: number;
    /**
     * @description null leaves it to the policy, which reasoning models need
     * @default 0.7
     */
    temperature?: number | null;
    /**
     * @description draw the first candidate at temperature 0, unless temperature is null
     * @default true
     */
    greedy_candidate?: boolean;
    /**
     * @description of each candidate; null leaves it to the policy
     * @default 128
     */
    max_tokens?: number | null;
    seed?: number | null;
    /** @description null takes the default */
    policy?: string | null;
};

/** @description What a call calls. */
export interface CalledFunction {
    name: string;
    /** @description JSON, as the model wrote it */
    arguments: string;
}

/** @description What a custom tool is given. */
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
    /** @description what the environment answered: a text, or the tools' results as messages; needed by a Q model whose `read_at` is `observation`, refused by any other */
    observation?: string | readonly Message[] | null;
}

/** @description A candidate and its Q. */
export interface ChatCandidate {
    message: ChatMessage;
    q_value: number | null;
    finish_reason: string;
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
 *     The last chunk with choices carries the guidance; with `include_usage` one more, without
 *     choices, carries the usage.
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
    /** @description false if there was a choice but no Q could be given */
    guided: boolean;
    /** @description why there is no guidance */
    unguided_reason: string | null;
    /** @enum {string} */
    reason: "highest_q" | "tied_highest_q" | "only_candidate" | "unanimous" | "fallback";
    /** @description index of the chosen candidate */
    chosen: number;
    /** @description indices of the returned candidates, the best first */
    returned: readonly number[];
    /** @description Q of every candidate; null if none could be given */
    q_values: readonly number[] | null;
    q_model: string;
    q_model_version: string;
    policy: string;
    /** @description number of candidates drawn */
    num_candidates: number;
    /** @description number of different candidates */
    distinct_candidates: number;
    /** @description candidates that adaptive M did not need */
    draws_saved: number;
    /** @description candidates drawn under a paraphrase */
    perturbed: number;
    /** @description what was asked for but could not be done */
    warnings: readonly string[];
    usage: StageUsage;
    timings_ms: Timings;
    /** @description present if the request named one */
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
    /** @description a policy; null takes the default */
    model?: string | null;
    /** @description how many of the best to return */
    n?: number | null;
    temperature?: number | null;
    max_tokens?: number | null;
    max_completion_tokens?: number | null;
    seed?: number | null;
    qguide?: GuidanceOptions;
}

/** @description One turn of a conversation; an upstream gets it as it is. */
export interface ChatTurn {
    role: ("system" | "developer" | "user" | "assistant" | "tool") | "function";
    content?: string | readonly ContentPart[] | null;
    tool_calls?: readonly (ToolCall | CustomToolCall)[] | null;
    tool_call_id?: string | null;
    /** @description how calls were spelt before there were tools */
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

/** @description A piece of a turn's content; only text can be read. */
export interface ContentPart {
    type: string;
    text?: string | null;
}

/** @description A custom tool's name and its whole input. */
export interface CustomDelta {
    name: string;
    input: string;
}

/** @description One call of a custom tool of an assistant's turn. */
export interface CustomToolCall {
    id: string;
    /** @constant */
    type: "custom";
    custom: CalledTool;
}

/** @description The chosen action and everything that it was chosen from. */
export interface Decision {
    /** @description the chosen reply's content */
    action: string;
    /** @description its index among the candidates */
    chosen: number;
    /** @enum {string} */
    reason: "highest_q" | "tied_highest_q" | "only_candidate" | "unanimous" | "fallback";
    /** @description false if there was a choice but no Q could be given */
    guided: boolean;
    /** @description why there is no guidance */
    unguided_reason?: string | null;
    candidates: readonly ScoredCandidate[];
    /** @description candidates that adaptive M did not need */
    draws_saved: number;
    /** @description candidates drawn under a paraphrase */
    perturbed: number;
    /** @description what was asked for but could not be done */
    warnings: readonly string[];
    policy: string;
    q_model: string;
    q_model_version: string;
    usage: Usage;
    timings_ms: Timings;
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
    /** @description if no Q can be given: `error`, or `first` for the first candidate; null takes the server's setting */
    fallback?: ("error" | "first") | null;
    /** @description ties the steps of one episode together, and to one Q model where the operator split them */
    episode_id?: string | null;
    /**
     * @description draw in small batches until Q rises over the previous step's, at most num_candidates; needs episode_id or previous_q
     * @default false
     */
    adaptive?: boolean;
    /** @description for adaptive: Q of the action that led here; null takes the episode's */
    previous_q?: number | null;
    /**
     * @description draw the candidates after the first under paraphrases of the task
     * @default false
     */
    perturb?: boolean;
    /** @description for perturb: the part of the first user message that says what to do; null finds it */
    task?: string | null;
    /** @description M, how many candidates to draw; null takes the server's default */
    num_candidates?: number | null;
    /** @description of the candidates; goes before the body's `temperature` */
    temperature?: number | null;
    /**
     * @description whether the answer shows all candidates
     * @default false
     */
    return_candidates?: boolean;
}

/** @description One turn, OpenAI's shape. */
export interface Message {
    /** @enum {string} */
    role: "system" | "developer" | "user" | "assistant" | "tool";
    /** @description text, or parts of type text; null beside tool calls */
    content?: string | readonly ContentPart[] | null;
    tool_calls?: readonly (ToolCall | CustomToolCall)[] | null;
    tool_call_id?: string | null;
}

/** @description A model that is served, and what its checkpoint says of it. */
export interface ModelCard {
    /** @description what a request calls it by: a Q model's is `name@version` */
    id: string;
    /**
     * @default model
     * @constant
     */
    object?: "model";
    /** @enum {string} */
    kind: "policy" | "q_model";
    name: string;
    /** @description null for the policy */
    version: string | null;
    /** @description when this server started to serve it, in Unix seconds */
    created: number;
    /** @description who runs it: an upstream's name, or qguide */
    owned_by: string;
    /** @enum {string} */
    source: "embedded" | "scripted" | "checkpoint" | "vllm" | "upstream";
    /** @description a request that names none gets it, or may get it */
    default: boolean;
    /** @description most tokens; null for a fake */
    context: number | null;
    /** @description the name in its manifest */
    checkpoint: string | null;
    /** @description what it was trained on */
    environment: string | null;
    /** @description where Q is read: `last_token` of the action, after its `observation`, or at all `action_tokens`; null for a policy and a fake */
    read_at: string | null;
    /** @description what its Q was regressed on: q, avg or reward */
    target: string | null;
    /** @description what its training measured */
    metrics: {
        [key: string]: number;
    };
}

/** @description All models that are served, and the names that lead to the Q models. */
export interface ModelList {
    /**
     * @default list
     * @constant
     */
    object?: "list";
    data: readonly ModelCard[];
    /** @description name -> the one Q model that it leads to */
    aliases: {
        [key: string]: string;
    };
    /** @description name -> Q models, and the share of the episodes of each */
    splits: {
        [key: string]: {
            [key: string]: number;
        };
    };
    /** @description Q model's name -> what scores its requests a second time */
    shadows: {
        [key: string]: string;
    };
}

/** @description Options of a request that only scores. */
export interface ModelOptions {
    /** @description a name, `name@version` or alias; null takes the default */
    q_model?: string | null;
    /** @description ties the steps of one episode together, and to one Q model where the operator split them */
    episode_id?: string | null;
}

/** @description An episode that has its outcome. */
export interface Outcome {
    episode_id: string;
    reward: number;
    /** @description distinct states in which it was guided */
    steps: number;
    /** @description true if it was written for the offline jobs */
    recorded: boolean;
    /** @description why it was not written */
    reason: string | null;
}

/** @description Options of an episode's outcome. */
export interface OutcomeOptions {
    /**
     * @description false if a limit of steps cut the episode off
     * @default true
     */
    terminated?: boolean;
    /** @description the last one, if it was not the chosen one */
    action?: string | null;
    /** @description the observation after the last action */
    observation?: string;
}

/** @description Tokens spent on paraphrases of the task. */
export interface ParaphraseUsage {
    prompt_tokens: number;
    completion_tokens: number;
}

/** @description Details of the prompt's tokens. */
export interface PromptTokensDetails {
    /** @description tokens that an upstream had cached */
    cached_tokens: number;
}

/** @description A document's place and its Q. */
export interface RankedDocument {
    index: number;
    /** @description 1 / (1 + exp(-q_value)): an order, not a probability */
    relevance_score: number;
    /** @description ours: the raw Q */
    q_value: number;
}

/** @description The documents from the highest Q to the lowest. */
export interface Ranking {
    model: string;
    results: readonly RankedDocument[];
    usage: RerankUsage;
}

/** @description Whether the server works. */
export interface Readiness {
    /** @enum {string} */
    status: "ok" | "unavailable";
    reason?: string | null;
    /** @description `redis`: ok, or gone while memory serves in its place; absent without Redis. `upstream NAME`: ok, or what is wrong with it */
    details?: {
        [key: string]: string;
    };
}

/** @description Options of a reranking. */
export type RerankOptions = ModelOptions & {
    /** @description how many of the best to return; null returns all */
    top_n?: number | null;
};

/** @description Tokens of the history and the documents; those found in the cache are ours to tell. */
export interface RerankUsage {
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
}

/** @description One answer per item, in the request's order. */
export interface ScoreBatch {
    items: readonly ScoredItem[];
    q_model: string;
    q_model_version: string;
    /** @description `score` is that of the slowest item */
    timings_ms: ScoreTimings;
}

/** @description What an agent has seen so far, and the caller's own candidates. */
export interface ScoreItem {
    messages: readonly Message[];
    /** @description possible next actions: texts or assistant messages, all different */
    candidates: readonly (string | CandidateMessage)[];
}

/** @description Milliseconds per stage, waiting included. */
export interface ScoreTimings {
    score: number;
    total: number;
}

/** @description Tokens that the scorer computed, and that it found in its cache. */
export interface ScoreUsage {
    scored_tokens: number;
    cached_tokens: number;
}

/** @description A candidate and its Q. */
export interface ScoredCandidate {
    message: DrawnMessage;
    /** @description null if none was read; see `reason` */
    q_value: number | null;
}

/** @description Q of every candidate of one history, in the request's order. */
export interface ScoredItem {
    scores: readonly Score[];
    chosen: number;
    /** @enum {string} */
    reason: "highest_q" | "tied_highest_q" | "only_candidate" | "unanimous" | "fallback";
    usage: ScoreUsage;
}

/** @description Also which version scored, and how long it took. */
export type Scores = ScoredItem & {
    q_model: string;
    q_model_version: string;
    timings_ms: ScoreTimings;
};

/** @description Tokens of each stage. */
export interface StageUsage {
    paraphrase: ParaphraseUsage;
    sample: SampleUsage;
    score: ScoreUsage;
}

/** @description Also the time it took to draw the candidates. */
export type Timings = ScoreTimings & {
    sample: number;
    paraphrase: number;
};

/** @description One tool call of an assistant's turn. */
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

/** @description Also the tokens of the history as the policy reads it, and those it generated. */
export type Usage = ScoreUsage & {
    prompt_tokens: number;
    completion_tokens: number;
    /** @description generated for paraphrases; 0 if they were cached */
    paraphrase_tokens: number;
    /** @description tokens of the prompt that an upstream had cached */
    cached_prompt_tokens: number;
};
