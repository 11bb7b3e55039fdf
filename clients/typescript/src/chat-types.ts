/** Chat completions in OpenAI's shape, and what QGuide adds to them under `qguide`. */

import type {
  AnyToolCall,
  ContentPart,
  Reason,
  Role,
  ScoreUsage,
  StepOptions,
  Timings,
} from "./types.js";

/** How candidates are drawn and scored. */
export interface GuidanceOptions extends StepOptions {
  /** M, how many to draw. */
  num_candidates?: number | null;
  /** Of the candidates; goes before the body's `temperature`. */
  temperature?: number | null;
  /** Show all candidates in the answer. */
  return_candidates?: boolean;
}

/** OpenAI's parameters, as far as a server need know them. */
export interface ChatOptions {
  /** The policy. */
  model?: string | null;
  /** How many of the best to return. */
  n?: number | null;
  temperature?: number | null;
  max_tokens?: number | null;
  max_completion_tokens?: number | null;
  seed?: number | null;
  stop?: string | readonly string[];
  tools?: readonly object[];
  tool_choice?: string | object;
  qguide?: GuidanceOptions;
  /** Any others; they are passed on to the policy. */
  extra_body?: Record<string, unknown>;
}

/** One turn of a conversation; an upstream gets it as it is, whatever else it holds. */
export interface ChatTurn {
  role: Role | "function";
  content?: string | readonly ContentPart[] | null;
  tool_calls?: readonly AnyToolCall[] | null;
  tool_call_id?: string | null;
  /** How calls were spelt before there were tools. */
  function_call?: { name: string; arguments: string } | null;
}

/** What was said, or which tools are to be called. */
export interface ChatMessage {
  role: "assistant";
  content: string | null;
  refusal?: string | null;
  tool_calls?: readonly AnyToolCall[] | null;
}

/** One of the best. */
export interface ChatChoice {
  index: number;
  message: ChatMessage;
  logprobs: object | null;
  finish_reason: string;
}

/** Tokens of the policy. */
export interface ChatUsage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details?: { cached_tokens: number };
  completion_tokens_details?: Record<string, number>;
}

/** Tokens of each stage. */
export interface StageUsage {
  paraphrase: { prompt_tokens: number; completion_tokens: number };
  sample: { prompt_tokens: number; cached_tokens: number; completion_tokens: number };
  score: ScoreUsage;
}

/** A candidate as the answer shows it if it was asked for; it may hold more. */
export interface ChatCandidate {
  message: ChatMessage;
  q_value: number | null;
  finish_reason: string;
}

/** Which candidate was chosen, and why. */
export interface ChatGuidance {
  guided: boolean;
  /** Why there is no guidance. */
  unguided_reason: string | null;
  reason: Reason;
  /** Its index among the candidates. */
  chosen: number;
  /** The indices of those that the choices are, the best first. */
  returned: readonly number[];
  /** Of all candidates; null where none could be given. */
  q_values: readonly number[] | null;
  q_model: string;
  q_model_version: string;
  policy: string;
  num_candidates: number;
  distinct_candidates: number;
  /** Candidates that `adaptive` did without. */
  draws_saved: number;
  /** Candidates that were drawn under a paraphrase. */
  perturbed: number;
  /** What was asked for and could not be had. */
  warnings: readonly string[];
  usage: StageUsage;
  timings_ms: Timings;
  episode_id?: string;
  /** All of them, if they were asked for. */
  candidates?: readonly ChatCandidate[];
}

/** The best of M. */
export interface ChatCompletion {
  id: string;
  object: "chat.completion";
  created: number;
  model: string;
  choices: readonly ChatChoice[];
  usage: ChatUsage;
  system_fingerprint?: string | null;
  qguide: ChatGuidance;
}

/** A piece of a tool call; pieces with the same `index` are one call. */
export interface ToolCallPiece {
  index: number;
  id?: string;
  type?: "function" | "custom";
  function?: { name?: string; arguments?: string };
  custom?: { name: string; input: string };
}

/** What is new in a choice. */
export interface ChatDelta {
  role?: "assistant";
  content?: string | null;
  refusal?: string | null;
  tool_calls?: readonly ToolCallPiece[];
}

/** A piece of one choice. */
export interface ChatChunkChoice {
  index: number;
  delta: ChatDelta;
  logprobs?: object | null;
  finish_reason: string | null;
}

/** A piece; the last one with choices has the guidance, and the one after it the usage. */
export interface ChatChunk {
  id: string;
  object: "chat.completion.chunk";
  created: number;
  model: string;
  choices: readonly ChatChunkChoice[];
  usage?: ChatUsage | null;
  system_fingerprint?: string | null;
  qguide?: ChatGuidance;
}
