/**
 * The client's types are the server's: what differs does not compile.
 *
 * `openapi.js` is made of the server's OpenAPI document, and `answers.js` of what it answered; see
 * tests/e2e/test_typescript_client.py.
 */

import type * as ours from "qguide-client";
import type * as theirs from "./openapi.js";

/** True only for the very same fields, the optional ones too. */
type Same<A, B> =
  (<T>() => T extends Flat<A> ? 1 : 2) extends <T>() => T extends Flat<B> ? 1 : 2 ? true : false;
type Flat<T> = { [K in keyof T]: T[K] };

/** What a document's rank would say only if the documents were asked for, which these are not. */
type Ranked = Omit<theirs.JinaRankedDocument, "document">;
type Ranking = Omit<theirs.JinaRerankResponse, "results"> & { results: readonly Ranked[] };

/** What the client's methods take as arguments of their own is the rest. */
type Reranked = Omit<
  theirs.JinaRerankRequest,
  "model" | "query" | "messages" | "documents" | "return_documents"
> & {
  q_model?: theirs.JinaRerankRequest["model"];
};
/** What the server passes on without knowing it. */
type OpenAIs = "stop" | "tools" | "tool_choice" | "extra_body";

export const SAME: {
  Decision: Same<ours.Decision, theirs.ActResponse>;
  Scores: Same<ours.Scores, theirs.ScoreResponse>;
  ScoreBatch: Same<ours.ScoreBatch, theirs.ScoreBatchResponse>;
  Ranking: Same<ours.Ranking, Ranking>;
  Outcome: Same<ours.Outcome, theirs.OutcomeResponse>;
  ModelList: Same<ours.ModelList, theirs.ModelList>;
  Readiness: Same<ours.Readiness, theirs.Health>;
  Message: Same<ours.Message, theirs.ChatMessage>;
  ScoreItem: Same<ours.ScoreItem, theirs.ScoreItem>;
  ModelOptions: Same<ours.ModelOptions, Omit<theirs.ScoreRequestBody, "messages" | "candidates">>;
  BatchOptions: Same<ours.ModelOptions, Omit<theirs.ScoreBatchBody, "items">>;
  ActOptions: Same<ours.ActOptions, Omit<theirs.ActRequest, "messages">>;
  RerankOptions: Same<ours.RerankOptions, Reranked>;
  OutcomeOptions: Same<ours.OutcomeOptions, Omit<theirs.OutcomeRequest, "reward">>;
  GuidanceOptions: Same<ours.GuidanceOptions, theirs.GuidanceOptions>;
  ChatTurn: Same<ours.ChatTurn, theirs.ChatTurn>;
  ChatOptions: Same<
    Omit<ours.ChatOptions, OpenAIs>,
    Omit<theirs.ChatCompletionRequest, "messages" | "stream" | "stream_options">
  >;
} = {
  Decision: true,
  Scores: true,
  ScoreBatch: true,
  Ranking: true,
  Outcome: true,
  ModelList: true,
  Readiness: true,
  Message: true,
  ScoreItem: true,
  ModelOptions: true,
  BatchOptions: true,
  ActOptions: true,
  RerankOptions: true,
  OutcomeOptions: true,
  GuidanceOptions: true,
  ChatTurn: true,
  ChatOptions: true,
};

// @ts-expect-error: a field of the server's that the client lacks is seen.
export const LACKS: Same<Omit<ours.Outcome, "reason">, theirs.OutcomeResponse> = true;
// @ts-expect-error: so is one that only the client believes in.
export const INVENTS: Same<ours.Outcome & { luck?: number }, theirs.OutcomeResponse> = true;
// @ts-expect-error: and one deep in another that may be null.
export const NULLS: Same<
  Omit<ours.Scores, "usage"> & { usage: { scored_tokens: number; cached_tokens: number | null } },
  theirs.ScoreResponse
> = true;
