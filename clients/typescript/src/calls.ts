/** Requests and the fields that mark their answers; nothing here touches the network. */

import { withDefaults } from "./defaults.js";
import { UnreadableAnswerError } from "./errors.js";
import type {
  ActOptions,
  Attempt,
  AttemptsOptions,
  BatchOptions,
  Candidate,
  ChatChunk,
  ChatCompletion,
  ChatOptions,
  ChatTurn,
  Decision,
  Messages,
  ModelList,
  ScoreOptions,
  Outcome,
  OutcomeOptions,
  Ranking,
  Readiness,
  RerankOptions,
  ScoreBatch,
  ScoreItem,
  Scores,
  Verdicts,
} from "./types.js";

/** One request. */
export interface Call<T> {
  method: "GET" | "POST";
  path: string;
  /** Fields that every answer to this request has. */
  has: readonly (keyof T & string)[];
  /** The JSON body; undefined sends no body. */
  body?: object;
  /**
   * True if sending it twice has no further effect, so that it may be sent again after a broken
   * connection, when it is unknown how far the request came.
   */
  repeatable: boolean;
  /** A status other than 2xx that carries an answer, not an error. */
  answering?: number;
}

export function act(messages: Messages, options: ActOptions): Call<Decision> {
  return post("/v1/act", ["action", "chosen", "candidates"], { messages, ...options });
}

export function score(
  messages: Messages,
  candidates: readonly Candidate[],
  options: ScoreOptions,
): Call<Scores> {
  return post("/v1/score", ["scores", "chosen"], { messages, candidates, ...options });
}

export function scoreBatch(items: readonly ScoreItem[], options: BatchOptions): Call<ScoreBatch> {
  return post("/v1/score/batch", ["items"], { items, ...options });
}

export function rerank(
  query: string | Messages,
  documents: readonly string[],
  { q_model: model, ...options }: RerankOptions,
): Call<Ranking> {
  const history = typeof query === "string" ? { query } : { messages: query };
  return post("/v1/rerank", ["results"], { ...history, documents, model, ...options });
}

/** Not repeatable, because a second outcome is refused. */
export function outcome(
  episodeId: string,
  reward: number | boolean,
  options: OutcomeOptions,
): Call<Outcome> {
  const path = `/v1/episodes/${encodeURIComponent(episodeId)}/outcome`;
  return {
    ...post<Outcome>(path, ["episode_id", "recorded"], { reward, ...options }),
    repeatable: false,
  };
}

export function attempts(
  given: readonly Attempt[],
  options: AttemptsOptions,
): Call<Verdicts> {
  return post("/v1/attempts", ["go_on", "attempts"], { attempts: given, ...options });
}

export function chat(messages: readonly ChatTurn[], options: ChatOptions): Call<ChatCompletion> {
  return post("/v1/chat/completions", ["choices", "qguide"], chatBody(messages, options));
}

/** The same as a stream; each event is a chunk. */
export function chatStream(messages: readonly ChatTurn[], options: ChatOptions): Call<ChatChunk> {
  const body = {
    ...chatBody(messages, options),
    stream: true,
    stream_options: { include_usage: true },
  };
  return post("/v1/chat/completions", ["choices"], body);
}

export function models(): Call<ModelList> {
  return { method: "GET", path: "/v1/models", has: ["data", "aliases"], repeatable: true };
}

export function ready(): Call<Readiness> {
  return { method: "GET", path: "/readyz", has: ["status"], repeatable: true, answering: 503 };
}

/** Read an answer; throws UnreadableAnswerError if the text is not one. */
export function read<T>(call: Call<T>, text: string, requestId: string): T {
  const answer = parsed(text);
  const lacks = call.has.find((field) => !(field in answer));
  if (lacks === undefined) return answer as T;
  throw new UnreadableAnswerError(
    `the answer to ${call.method} ${call.path} is not QGuide's or has an incompatible version ` +
      `(it lacks ${lacks}); check baseUrl and the server's version`,
    { requestId },
  );
}

/** Parse a JSON object; {} if the text is anything else. */
export function parsed(text: string): object {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? value : {};
  } catch {
    return {};
  }
}

/** Code and message of an error in a body; "" for one that is missing. */
export function said(error: unknown): { code: string; message: string } {
  if (typeof error === "string") return { code: "", message: error };
  const { code, message } = (error ?? {}) as { code?: unknown; message?: unknown };
  return {
    code: typeof code === "string" ? code : "",
    message: typeof message === "string" ? message : "",
  };
}

function chatBody(messages: readonly ChatTurn[], { extra_body, ...options }: ChatOptions): object {
  return { ...withDefaults<object>(extra_body ?? {}, options), messages };
}

function post<T>(path: string, has: readonly (keyof T & string)[], body: object): Call<T> {
  return { method: "POST", path, has, body, repeatable: true };
}
