/** An episode carries its own history, and a step that failed has not happened. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { EpisodeError, InvalidRequestError, NotFoundError, type QGuide } from "qguide-client";
import { bodyOf, clientOf, TASK } from "./answering.js";

interface Sent {
  path: string;
  body: Record<string, unknown>;
  timeout: string | undefined;
}

/** A client of a server that does as it is asked, and what it was sent. */
function recording(answer: (path: string) => Response = answered): {
  client: QGuide;
  sent: Sent[];
} {
  const sent: Sent[] = [];
  const client = clientOf((url, init) => {
    const path = new URL(url).pathname;
    const timeout = (init.headers as Record<string, string>)["X-QGuide-Timeout-S"];
    sent.push({ path, body: bodyOf(init), timeout });
    return answer(path);
  });
  return { client, sent };
}

function answered(path: string): Response {
  if (path === "/v1/act") return Response.json({ action: "look", chosen: 0, candidates: [] });
  if (path === "/v1/score") return Response.json({ scores: [], chosen: 1 });
  return Response.json({ episode_id: "a/b", recorded: true });
}

test("a router finds the episode in a header", async () => {
  const sent: (string | undefined)[] = [];
  const client = clientOf((_, init) => {
    sent.push((init.headers as Record<string, string>)["X-Session-ID"]);
    return answered("/v1/act");
  });
  await client.act(TASK, { episode_id: "tasks/apple 7" });
  await client.act(TASK);
  assert.deepEqual(sent, ["tasks%2Fapple%207", undefined]);
});

test("steps make a history, and every one bears the episode's id and options", async () => {
  const { client, sent } = recording();
  const episode = client.episode({
    system: "Act.",
    episode_id: "e1",
    q_model: "shop",
    num_candidates: 2,
  });
  assert.equal(await episode.act("task", { num_candidates: 3 }), "look");
  assert.equal(await episode.choose("a desk", ["a", "b"]), "b");
  assert.deepEqual(episode.messages, [
    { role: "system", content: "Act." },
    { role: "user", content: "task" },
    { role: "assistant", content: "look" },
    { role: "user", content: "a desk" },
    { role: "assistant", content: "b" },
  ]);
  const common = { episode_id: "e1", q_model: "shop" };
  assert.deepEqual(
    sent.map((one) => one.body),
    [
      { ...common, messages: episode.messages.slice(0, 2), num_candidates: 3 },
      { ...common, messages: episode.messages.slice(0, 4), candidates: ["a", "b"] },
    ],
  );
  assert.deepEqual(episode.last, { scores: [], chosen: 1 });
});

test("a chosen tool call and its result become turns", async () => {
  const { client } = recording();
  const episode = client.episode();
  const calls = ["inventory", "look"].map((name) => ({
    role: "assistant" as const,
    tool_calls: [{ id: `call_${name}`, function: { name, arguments: "{}" } }],
  }));
  const chosen = await episode.choose("task", calls);
  assert.equal(chosen, calls[1]);
  const result = { role: "tool" as const, content: "a desk 1", tool_call_id: "call_look" };
  await episode.act([result]);
  assert.deepEqual(episode.messages.slice(1, 3), [chosen, result]);
});

test("the episode's deadline is that of every step that has none of its own", async () => {
  const { client, sent } = recording();
  const episode = client.episode({}, { deadlineMs: 7000 });
  await episode.act("task");
  await episode.choose("a desk", ["a", "b"], {}, { deadlineMs: 3000 });
  await episode.finish(1);
  assert.deepEqual(
    sent.map((one) => Math.round(Number(one.timeout))),
    [7, 3, 7],
  );
});

test("undefined says nothing, so the episode's own holds; null is said", async () => {
  const { client, sent } = recording();
  const own = { q_model: "shop", num_candidates: 2, seed: 7 };
  const episode = client.episode({ ...own, episode_id: "e1" }, { deadlineMs: 7000 });
  const unsaid = { deadlineMs: undefined };
  await episode.act("task", { q_model: undefined, num_candidates: undefined, seed: null }, unsaid);
  await episode.choose("a desk", ["a", "b"], { q_model: undefined }, unsaid);
  await episode.choose("a shelf", ["a", "b"], { q_model: null }, unsaid);
  await episode.finish(1, {}, unsaid);
  assert.deepEqual(
    sent.map(({ body }) => [body.q_model, body.num_candidates, body.seed]),
    [
      ["shop", 2, null],
      ["shop", undefined, undefined],
      [null, undefined, undefined],
      [undefined, undefined, undefined],
    ],
  );
  assert.deepEqual(
    sent.map((one) => Math.round(Number(one.timeout))),
    [7, 7, 7, 7],
  );
});

test("an id that is given is kept, and others differ", () => {
  const { client } = recording();
  assert.equal(client.episode({ episode_id: "e1" }).episodeId, "e1");
  assert.match(client.episode({ episode_id: null }).episodeId, /^[0-9a-f]{32}$/);
  assert.notEqual(client.episode().episodeId, client.episode().episodeId);
});

test("a step that failed has changed nothing and can be taken again", async () => {
  let fails = true;
  const { client } = recording((path) =>
    fails ? Response.json({}, { status: 400 }) : answered(path),
  );
  const episode = client.episode();
  await assert.rejects(episode.act("task"), InvalidRequestError);
  assert.deepEqual([episode.messages, episode.last], [[], undefined]);
  fails = false;
  await episode.act("task");
  assert.equal(episode.messages.length, 2);
});

test("two steps at once are refused, and the first is taken", async () => {
  const { client, sent } = recording();
  const episode = client.episode();
  const first = episode.act("task");
  await assert.rejects(episode.act("task"), {
    name: "EpisodeError",
    message: /is still running; await it first/,
  });
  assert.equal(await first, "look");
  assert.deepEqual([sent.length, episode.messages.length], [1, 2]);
});

test("the history is a copy, of what is given and of what is shown", async () => {
  const { client } = recording();
  const episode = client.episode();
  const turn = { role: "user" as const, content: "task" };
  await episode.act([turn]);
  turn.content = "something else";
  episode.messages[0]!.content = "something else";
  assert.equal(episode.messages[0]?.content, "task");
});

test("finish tells the outcome and ends the episode", async () => {
  const { client, sent } = recording();
  const episode = client.episode({ episode_id: "a/b" });
  assert.equal((await episode.finish(0.5, { observation: "You win." })).recorded, true);
  await assert.rejects(episode.finish(0.5), EpisodeError);
  await assert.rejects(episode.act("You are back."), { message: /a\/b has ended; begin another/ });
  assert.deepEqual(
    sent.map(({ path, body }) => [path, body]),
    [["/v1/episodes/a%2Fb/outcome", { reward: 0.5, observation: "You win." }]],
  );
});

test("an outcome that was refused can be told again", async () => {
  const { client, sent } = recording(() => new Response("", { status: 404 }));
  const episode = client.episode();
  for (const _ of [1, 2]) await assert.rejects(episode.finish(1), NotFoundError);
  assert.equal(sent.length, 2);
});
