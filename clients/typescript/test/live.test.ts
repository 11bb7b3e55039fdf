/**
 * Every question to a real server.
 *
 * QGUIDE_URL names one with API keys and a fake upstream as its policy; QGUIDE_KEY is one of them.
 */

import assert from "node:assert/strict";
import { env } from "node:process";
import { test } from "node:test";
import * as qguide from "qguide-client";
import { type AnyToolCall, type Message, QGuide, type ToolCallPiece } from "qguide-client";
import { TASK, thrownBy } from "./answering.js";

const { QGUIDE_URL: url, QGUIDE_KEY: apiKey } = env;
const client = new QGuide(url, { apiKey, timeoutMs: 60_000, retry: { firstWaitMs: 1 } });
const live = { skip: url === undefined && "QGUIDE_URL names no server" };
const BEST = "Thought: The desk is a good place to start.\nAction: go to desk 1";
const TOOLS = [
  { type: "function", function: { name: "look", parameters: { type: "object", properties: {} } } },
  { type: "custom", custom: { name: "shell" } },
];

let made = 0;
function call(name: string): Message {
  made += 1;
  return {
    role: "assistant",
    tool_calls: [{ id: `call_${made}`, function: { name, arguments: "{}" } }],
  };
}

test("act returns the choice and what it was chosen from", live, async () => {
  const decision = await client.act(TASK, { num_candidates: 3, temperature: null, seed: 0 });
  const qValues = decision.candidates.map((candidate) => candidate.q_value ?? NaN);
  assert.equal(qValues.length, 3);
  assert.equal(qValues[decision.chosen], Math.max(...qValues));
  assert.equal(decision.action, BEST);
  assert.equal(decision.candidates[decision.chosen]?.message.content, decision.action);
  assert.ok(
    decision.guided && decision.usage.completion_tokens > 0 && decision.timings_ms.total > 0,
  );
});

test(
  "score judges texts and tool calls, and a batch is scored as its items are",
  live,
  async () => {
    const texts = ["Action: look", "Action: go to desk 1"];
    const scores = await client.score(TASK, texts);
    assert.deepEqual([scores.chosen, scores.reason], [1, "highest_q"]);
    assert.equal(
      (await client.score(TASK, [call("look"), call("inventory"), "Action: wait"])).scores.length,
      3,
    );
    const items = [
      { messages: TASK, candidates: texts },
      { messages: TASK, candidates: [call("sleep")] },
    ];
    const batch = await client.scoreBatch(items, { q_model: "q" });
    assert.deepEqual(batch.items[0]?.scores, scores.scores);
    assert.equal(batch.items.length, 2);
  },
);

test("rerank sorts the documents", live, async () => {
  const documents = ["Action: look", "Action: go to desk 1", "Action: inventory"];
  const ranking = await client.rerank(TASK, documents, { top_n: 2, q_model: "q" });
  assert.equal(ranking.results[0]?.index, 1);
  assert.equal(ranking.results.length, 2);
  assert.deepEqual(
    (await client.rerank(TASK[0]!.content, documents)).results.slice(0, 2),
    ranking.results,
  );
});

test("models and readiness are told", live, async () => {
  const { data, q_models, aliases } = await client.models();
  const kinds = [...data, ...q_models].map((card) => card.kind);
  assert.deepEqual(kinds, ["policy", "q_model"]);
  assert.equal(aliases["default"], "q");
  assert.equal((await client.ready()).status, "ok");
});

test("a completion is the same whole and in pieces", live, async () => {
  const options = { qguide: { num_candidates: 3 } };
  const whole = await client.chat(TASK, { qguide: { ...options.qguide, return_candidates: true } });
  assert.equal(whole.choices[0]?.message.content, BEST);
  assert.equal(whole.qguide.candidates?.length, 3);
  let text = "";
  let chosen: number | undefined;
  let usage: qguide.ChatUsage | null | undefined;
  for await (const chunk of client.chatStream(TASK, options)) {
    text += chunk.choices[0]?.delta.content ?? "";
    chosen = chunk.qguide?.chosen ?? chosen;
    usage = chunk.usage;
  }
  assert.deepEqual([text, chosen, usage], [BEST, whole.qguide.chosen, whole.usage]);
});

test("calls of functions and of custom tools are read, whole and in pieces", live, async () => {
  const options = { n: 2, tools: TOOLS, qguide: { num_candidates: 2 } };
  const { choices } = await client.chat(TASK, options);
  const calls = choices.flatMap((choice) => [...(choice.message.tool_calls ?? [])]);
  assert.deepEqual(calls.map(nameOf).sort(), ["look", "shell"]);
  const pieces: ToolCallPiece[] = [];
  for await (const chunk of client.chatStream(TASK, options)) {
    for (const choice of chunk.choices) pieces.push(...(choice.delta.tool_calls ?? []));
  }
  const names = pieces.map((piece) => piece.function?.name ?? piece.custom?.name).filter(Boolean);
  assert.deepEqual(names.sort(), ["look", "shell"]);
  assert.deepEqual(pieces.map((piece) => piece.function?.arguments).filter(Boolean), ["{}"]);
});

function nameOf(one: AnyToolCall): string {
  return one.type === "custom" ? one.custom.name : one.function.name;
}

test("an episode takes steps, and its outcome closes it", live, async () => {
  const episode = client.episode({ system: "You are an agent.", num_candidates: 3 });
  const action = await episode.act("You see a desk 1. Your task is to: find the mug.");
  assert.ok(action.startsWith("Thought: "));
  const own = ["Action: look", "Action: go to desk 1"];
  const tooMuch = episode.choose("Nothing happens.", own, { earned: 1e9 });
  await assert.rejects(tooMuch, /earned is 1e\+09; this server takes/);
  assert.equal(await episode.choose("Nothing happens.", own, { earned: 0.25 }), own[1]);
  const closed = await episode.finish(0.5, { terminated: false, observation: "It is late." });
  assert.deepEqual([closed.episode_id, closed.reward, closed.steps], [episode.episodeId, 0.5, 2]);
  await assert.rejects(client.outcome(episode.episodeId, 0), qguide.EpisodeClosedError);
  await assert.rejects(client.outcome(`${episode.episodeId}/?`, 0), qguide.UnknownEpisodeError);
});

test("a server understands the deadline", live, async () => {
  assert.ok((await client.act(TASK, {}, { deadlineMs: 30_000 })).action);
});

const REFUSALS: [string, () => Promise<unknown>][] = [
  ["InvalidCandidatesError", () => client.act(TASK, { num_candidates: 1000 })],
  ["InvalidCandidatesError", () => client.score(TASK, [call("look"), call("look")])],
  ["MalformedHistoryError", () => client.act([])],
  ["UnknownModelError", () => client.act(TASK, { q_model: "nobody" })],
  ["UnknownModelError", () => client.chat(TASK, { model: "nobody" })],
  ["UnknownModelError", () => client.chatStream(TASK, { model: "nobody" }).next()],
  ["MalformedBodyError", () => client.act(TASK, { temperature: 9 })],
  ["MalformedBodyError", () => client.outcome("e", NaN)],
  ["BodyTooLargeError", () => client.act([{ role: "user", content: "a".repeat(5 * 1024 ** 2) }])],
  ["UnauthorizedError", () => new QGuide(url, { apiKey: "qg_nobodys" }).models()],
];

for (const [name, ask] of REFUSALS) {
  test(
    `the server's refusal is a ${name}: ${ask.toString().slice("() => ".length, 60)}`,
    live,
    async () => {
      const error = await thrownBy(ask());
      assert.ok(error instanceof qguide.RefusedError, String(error));
      assert.equal(error.name, name);
      assert.match(error.requestId, /^[0-9a-f]{32}$/);
      assert.ok(error.code && error.message.endsWith(` (request ${error.requestId})`));
    },
  );
}
