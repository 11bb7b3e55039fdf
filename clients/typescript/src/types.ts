/**
 * What is asked and what is answered, spelt as on the wire.
 *
 * Answers may hold more than is named here: a newer server's fields are passed over. A question
 * that leaves an option out gets the server's default.
 */

export type Role = "system" | "developer" | "user" | "assistant" | "tool";

/** Why a candidate was taken; the last two are those of a decision that no Q was read for. */
export type Reason = "highest_q" | "tied_highest_q" | "only_candidate" | "unanimous" | "fallback";

/** What to do where no Q can be given: refuse, or take the first candidate. */
export type Fallback = "error" | "first";

/** What a tool call calls; `arguments` is JSON, as the model wrote it. */
export interface CalledFunction {
  name: string;
  arguments: string;
}

/** One tool call of an assistant's turn. */
export interface ToolCall {
  id: string;
  type?: "function";
  function: CalledFunction;
}

/** What a custom tool is given; `input` is any text. */
export interface CalledTool {
  name: string;
  input: string;
}

/** One call of a custom tool of an assistant's turn. */
export interface CustomToolCall {
  id: string;
  type: "custom";
  custom: CalledTool;
}

/** `type` says which; it is "custom" for one of a custom tool. */
export type AnyToolCall = ToolCall | CustomToolCall;

/** A piece of a turn's content; the Q models read text alone. */
export interface ContentPart {
  type: string;
  text?: string | null;
}

/** One turn, OpenAI's shape; `content` may be null beside tool calls. */
export interface Message {
  role: Role;
  content?: string | readonly ContentPart[] | null;
  tool_calls?: readonly AnyToolCall[] | null;
  tool_call_id?: string | null;
}

/** The history in OpenAI's shape; the last turn is not the agent's. */
export type Messages = readonly Message[];

/**
 * What an agent might do next. A Q model whose `read_at` is "observation" needs the `observation`:
 * what trying it answered, a text or the tools' results as messages.
 */
export interface CandidateMessage extends Message {
  observation?: string | readonly Message[] | null;
}

/** What an agent might do next: a text, or an assistant's message (with `tool_calls`). */
export type Candidate = string | CandidateMessage;

/** One history and the candidates for what comes next; one item of a batch. */
export interface ScoreItem {
  messages: Messages;
  candidates: readonly Candidate[];
}

/** Which Q model scores. */
export interface ModelOptions {
  /** A name, `name@version` or alias. */
  q_model?: string | null;
  /** Keeps an episode with one Q model where the operator split them. */
  episode_id?: string | null;
}

/** How a step is guided, by whichever endpoint. */
export interface StepOptions extends ModelOptions {
  /** Where no Q can be given. */
  fallback?: Fallback | null;
  /**
   * Draw in small batches, until Q rises over the previous step's; needs an `episode_id` or
   * `previous_q`.
   */
  adaptive?: boolean;
  /** Q of the action that led here; the server knows it of an episode. */
  previous_q?: number | null;
  /** Draw the candidates after the first under paraphrases of the task. */
  perturb?: boolean;
  /** What to paraphrase, where the server does not find it in the first message. */
  task?: string | null;
}

/** How candidates are drawn and scored. */
export interface ActOptions extends StepOptions {
  /** M, how many to draw. */
  num_candidates?: number;
  /** Of the draws, from 0 to 5; null leaves it to the policy. */
  temperature?: number | null;
  /** Whether the first is drawn at temperature 0. */
  greedy_candidate?: boolean;
  /** Of each candidate; null leaves it to the policy. */
  max_tokens?: number | null;
  /** Makes the draws repeatable. */
  seed?: number | null;
  /** The policy's name. */
  policy?: string | null;
}

/** What is returned, and which Q model scores. */
export interface RerankOptions extends ModelOptions {
  /** How many of the best; without it all. */
  top_n?: number | null;
}

/** How an episode ended. */
export interface OutcomeOptions {
  /** False where a limit of steps cut it off. */
  terminated?: boolean;
  /** The last one, if it was not the chosen one. */
  action?: string | null;
  /** What the last action brought. */
  observation?: string;
}

/** Tokens that the scorer computed, and that it found in its cache. */
export interface ScoreUsage {
  scored_tokens: number;
  cached_tokens: number;
}

/** Also the tokens of the history as the policy reads it, and those that were generated. */
export interface Usage extends ScoreUsage {
  prompt_tokens: number;
  completion_tokens: number;
  paraphrase_tokens: number;
  /** Of the prompt, that an upstream knew already. */
  cached_prompt_tokens: number;
}

/** Milliseconds per stage in the server, waiting included. */
export interface ScoreTimings {
  score: number;
  total: number;
}

/** Also the time it took to reword the task and to draw the candidates. */
export interface Timings extends ScoreTimings {
  sample: number;
  paraphrase: number;
}

/** A candidate and its Q; null where the server could give none and said so. */
export interface ScoredCandidate {
  message: Message;
  q_value: number | null;
}

/** The chosen action and everything that it was chosen from. */
export interface Decision {
  /** The chosen reply. */
  action: string;
  /** Its index among the candidates. */
  chosen: number;
  reason: Reason;
  candidates: readonly ScoredCandidate[];
  /** Whether a Q model had a say; where not, `unguided_reason` says why. */
  guided: boolean;
  unguided_reason?: string | null;
  /** Candidates that `adaptive` did without. */
  draws_saved: number;
  /** Candidates that were drawn under a paraphrase. */
  perturbed: number;
  /** What was asked for and could not be had. */
  warnings: readonly string[];
  policy: string;
  q_model: string;
  q_model_version: string;
  usage: Usage;
  timings_ms: Timings;
}

/** Q of the candidate at `index`. */
export interface Score {
  index: number;
  q_value: number;
}

/** Q of every candidate of one history, in the order in which they were sent. */
export interface ScoredItem {
  scores: readonly Score[];
  /** The index of the best. */
  chosen: number;
  reason: Reason;
  usage: ScoreUsage;
}

/** Also which version scored, and how long it took. */
export interface Scores extends ScoredItem {
  q_model: string;
  q_model_version: string;
  timings_ms: ScoreTimings;
}

/** One answer per item, in the order in which they were sent. */
export interface ScoreBatch {
  items: readonly ScoredItem[];
  q_model: string;
  q_model_version: string;
  timings_ms: ScoreTimings;
}

/** A document's place, and its Q. */
export interface RankedDocument {
  /** Among the documents that were sent. */
  index: number;
  /** The logistic function of Q, in [0, 1]. */
  relevance_score: number;
  q_value: number;
}

/** Tokens of the history and the documents, and how many of them were cached. */
export interface RerankUsage {
  total_tokens: number;
  cached_tokens: number;
}

/** The documents from the highest Q to the lowest. */
export interface Ranking {
  /** The `name@version` that scored. */
  model: string;
  results: readonly RankedDocument[];
  usage: RerankUsage;
}

/** An episode that has its outcome. */
export interface Outcome {
  episode_id: string;
  reward: number;
  /** Different states that it was guided in. */
  steps: number;
  /** Whether it became training data. */
  recorded: boolean;
  /** Why it did not. */
  reason: string | null;
}

/** A model that is served; see the server's /docs. */
export interface ModelCard {
  id: string;
  object?: "model";
  kind: "policy" | "q_model";
  name: string;
  version: string | null;
  created: number;
  owned_by: string;
  source: "embedded" | "scripted" | "checkpoint" | "vllm" | "upstream";
  default: boolean;
  context: number | null;
  checkpoint: string | null;
  environment: string | null;
  read_at: string | null;
  target: string | null;
  metrics: Record<string, number>;
}

/** All models that are served, and the names that lead to the Q models. */
export interface ModelList {
  object?: "list";
  data: readonly ModelCard[];
  aliases: Record<string, string>;
  splits: Record<string, Record<string, number>>;
  shadows: Record<string, string>;
}

/** Whether requests can be served, and if not, why. */
export interface Readiness {
  status: "ok" | "unavailable";
  reason?: string | null;
  /** What else is to be known, for example whether Redis answers. */
  details?: Record<string, string>;
}
