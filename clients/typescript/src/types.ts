/**
 * Types of requests and answers, spelt as on the wire.
 *
 * A field that a newer server adds to an answer is ignored. An option that is left out gets the
 * server's default.
 */

import type {
  CandidateMessage,
  ChatParameters,
  CustomToolCall,
  Decision,
  GuidanceOptions,
  Message,
  ToolCall,
} from "./schemas.js";

export type * from "./schemas.js";

/** Who speaks in a turn. */
export type Role = Message["role"];

/** Why a candidate was chosen; for `fallback` and `explored` no Q was read. */
export type Reason = Decision["reason"];

/** What to do where no Q can be given: refuse the request, or take the likeliest candidate. */
export type Fallback = NonNullable<GuidanceOptions["fallback"]>;

/** A tool call; its `type` is "custom" for a custom tool. */
export type AnyToolCall = ToolCall | CustomToolCall;

/** A history in OpenAI's shape; its last turn is not the assistant's. */
export type Messages = readonly Message[];

/**
 * A possible next action: a text, or an assistant's message (with `tool_calls`).
 *
 * For a Q model whose `read_at` is "observation" the message also has the `observation`: what
 * trying the action answered, as a text or as the tools' results in messages.
 */
export type Candidate = string | CandidateMessage;

/** Options of a guided step that every endpoint for such steps has. */
export type StepOptions = Omit<
  GuidanceOptions,
  "num_candidates" | "temperature" | "return_candidates"
>;

/** Parameters of a chat completion, those included that only an upstream reads. */
export interface ChatOptions extends ChatParameters {
  stop?: string | readonly string[];
  tools?: readonly object[];
  tool_choice?: string | object;
  /** Further parameters; the server passes them on to the policy. */
  extra_body?: Record<string, unknown>;
}
