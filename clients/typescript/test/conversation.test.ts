/** When the client asks again, how long it waits, and what it says when it gives up. */

import assert from "node:assert/strict";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { inspect } from "node:util";
import { DEFAULT_RETRY, retryAfterMs, waitMs } from "#dist/conversation.js";
import { refused } from "#dist/errors.js";
import * as qguide from "qguide-client";
import { QGuide, RefusedError, TimedOutError, UnreachableError } from "qguide-client";
import {
  answering,
  AT_ONCE,
  bodyOf,
  clientOf,
  json,
  READY,
  refuse,
  TASK,
  thrownBy,
} from "./answering.js";

const KEY = "qg_very_secret";
const ASK = { repeatable: true };
const OUTCOME = { episode_id: "e", reward: 1, steps: 1, recorded: false, reason: null };

test("an answer needs no second question", async (t) => {
  const { url, asked } = await answering(t, (_, response) => json(response, READY));
  assert.equal((await new QGuide(url).ready()).status, "ok");
  assert.equal(asked.length, 1);
});

test("what was turned away is asked again with the same id, and answered", async (t) => {
  const { url, asked } = await answering(t, (_, response, number) =>
    number < 3 ? refuse(response, 503, "overloaded") : json(response, { data: [], aliases: {} }),
  );
  await new QGuide(url, { retry: AT_ONCE }).models();
  const ids = new Set(asked.map((one) => one.headers["x-request-id"]));
  assert.deepEqual([asked.length, ids.size], [3, 1]);
  assert.match([...ids].join(), /^[0-9a-f]{32}$/);
});

test("waits are drawn and double up to the longest", () => {
  const retry = { attempts: 5, firstWaitMs: 1000, maxWaitMs: 3000 };
  const waits = [1, 2, 3, 4, 5].map((attempt) =>
    waitMs(refused("", { status: 503 }), ASK, retry, attempt, 0.5),
  );
  assert.deepEqual(waits, [500, 1000, 1500, 1500, undefined]);
});

test("Retry-After is honoured and spread, and too long a wait is left to the caller", () => {
  const wait = (ms: number): number | undefined =>
    waitMs(refused("", { status: 429, retryAfterMs: ms }), ASK, DEFAULT_RETRY, 1, 0.5);
  assert.equal(wait(7000), 7125);
  assert.equal(wait(3_600_000), undefined);
});

test("Retry-After is seconds or a date", () => {
  const read = (header: string | null): number | undefined => retryAfterMs(header, 1_000_000);
  assert.equal(read("3"), 3000);
  assert.equal(read(new Date(1_030_000).toUTCString()), 30_000);
  assert.equal(read(new Date(10_000).toUTCString()), 0);
  for (const none of [null, "", "soon", "-3", "²", "1.5"])
    assert.equal(read(none), undefined, String(none));
});

test("the client waits as long as the server says", async (t) => {
  const { url, asked } = await answering(t, (_, response, number) =>
    number === 1
      ? refuse(response, 429, "rate_limited", { "Retry-After": "1" })
      : json(response, OUTCOME),
  );
  const began = performance.now();
  await new QGuide(url, { retry: AT_ONCE }).outcome("e", 1);
  assert.ok(performance.now() - began >= 990);
  assert.equal(asked.length, 2);
});

test("what is undefined of the retries is as if it were not said", async (t) => {
  const { url, asked } = await answering(t, (_, response, number) =>
    number > 3 ? json(response, READY) : refuse(response, 503, "overloaded"),
  );
  const client = new QGuide(url, { retry: { ...AT_ONCE, attempts: undefined } });
  await assert.rejects(client.models(), qguide.OverloadedError);
  assert.equal(asked.length, 3);
});

for (const [code, kind] of [
  ["scorer_unavailable", qguide.ScorerUnavailableError],
  ["deadline_exceeded", qguide.DeadlineExceededError],
] as const) {
  test(`the last refusal is thrown with all that was said: ${code}`, async (t) => {
    const { url, asked } = await answering(t, (_, response) =>
      refuse(response, 503, code, { "Retry-After": "0" }),
    );
    const error = await thrownBy(new QGuide(url, { retry: AT_ONCE }).act(TASK));
    assert.ok(error instanceof kind);
    assert.deepEqual([error.status, error.code, error.requestId], [503, code, "r1"]);
    assert.equal(error.message, "not now; come back later (request r1)");
    assert.equal(error.retryAfterMs, 0);
    assert.equal(asked.length, 3);
  });
}

/** An address that was somebody's a moment ago. */
async function nobodysUrl(): Promise<string> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return `http://127.0.0.1:${port}`;
}

const RAISED_AT_ONCE: [number, string, string][] = [
  [400, "history_too_long", "HistoryTooLongError"],
  [400, "context_length_exceeded", "HistoryTooLongError"],
  [400, "new_in_a_later_server", "InvalidRequestError"],
  [401, "unauthorized", "UnauthorizedError"],
  [403, "forbidden", "ForbiddenError"],
  [404, "unknown_model", "UnknownModelError"],
  [404, "not_found", "NotFoundError"],
  [409, "episode_closed", "EpisodeClosedError"],
  [413, "body_too_large", "BodyTooLargeError"],
  [422, "malformed_body", "MalformedBodyError"],
  [500, "internal_error", "ServerFailedError"],
  [504, "upstream_timeout", "UpstreamFailedError"],
  [418, "", "RefusedError"],
  [307, "", "RefusedError"],
];

for (const [status, code, name] of RAISED_AT_ONCE) {
  test(`${status} ${code} is thrown at once as ${name}`, async (t) => {
    const { url, asked } = await answering(t, (_, response) =>
      refuse(response, status, code, { Location: "/elsewhere" }),
    );
    const error = await thrownBy(new QGuide(url, { retry: AT_ONCE }).act(TASK));
    assert.ok(error instanceof RefusedError);
    assert.deepEqual([error.name, error.constructor.name, error.status], [name, name, status]);
    assert.equal(asked.length, 1);
  });
}

test("what may have been done is asked again only where that changes nothing", async (t) => {
  const { url, asked } = await answering(t, ({ path }, response, number) => {
    if (number % 2 === 0) json(response, path === "/readyz" ? READY : OUTCOME);
    else if (number < 4) response.destroy();
    else refuse(response, 502, "upstream_failed");
  });
  const client = new QGuide(url, { retry: AT_ONCE });
  assert.equal((await client.ready()).status, "ok");
  assert.ok((await thrownBy(client.outcome("e", 1))) instanceof UnreachableError);
  assert.equal(asked.length, 3);
});

test("a bad gateway is asked again, but not for an outcome", async (t) => {
  const { url, asked } = await answering(t, (_, response) =>
    refuse(response, 502, "upstream_failed"),
  );
  const client = new QGuide(url, { retry: AT_ONCE });
  await assert.rejects(client.outcome("e", 1), qguide.UpstreamFailedError);
  assert.equal(asked.length, 1);
  await assert.rejects(client.models(), qguide.UpstreamFailedError);
  assert.equal(asked.length, 4);
});

test("an answer that breaks off is asked for again", async (t) => {
  const { url, asked } = await answering(t, (_, response, number) => {
    if (number > 1) return json(response, READY);
    response.writeHead(200, { "Content-Length": "100" });
    response.write('{"status":', () => response.destroy());
  });
  assert.equal((await new QGuide(url, { retry: AT_ONCE }).ready()).status, "ok");
  assert.equal(asked.length, 2);
});

test("nobody listening is unreachable, and even an outcome is told again", async () => {
  let attempts = 0;
  const counting = (url: string, init: RequestInit): Promise<Response> => {
    attempts += 1;
    return fetch(url, init);
  };
  const url = await nobodysUrl();
  const error = await thrownBy(
    new QGuide(url, { retry: AT_ONCE, fetch: counting }).outcome("e", 1),
  );
  assert.ok(error instanceof UnreachableError);
  const { message } = error;
  assert.ok(
    message.startsWith(`POST ${url}/v1/episodes/e/outcome cannot be reached (connect ECONNREFUSED`),
    message,
  );
  assert.match(message, /check that the server runs, baseUrl is right .*\(request [0-9a-f]{32}\)$/);
  assert.equal(attempts, 3);
});

test("a refused connection is asked for again whatever the question", () => {
  const cause = Object.assign(new TypeError("fetch failed"), { cause: { code: "ECONNREFUSED" } });
  const broken = Object.assign(new TypeError("fetch failed"), { cause: { code: "ECONNRESET" } });
  const wait = (error: unknown): number | undefined =>
    waitMs(
      new UnreachableError("", { cause: error }),
      { repeatable: false },
      DEFAULT_RETRY,
      1,
      0.5,
    );
  assert.equal(wait(cause), 125);
  assert.equal(wait(broken), undefined);
});

test("a server that hangs times out and is not asked again", async (t) => {
  const silent = createServer();
  await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", resolve));
  t.after(() => silent.close());
  let connections = 0;
  silent.on("connection", (socket) => {
    connections += 1;
    t.after(() => socket.destroy());
  });
  const url = `http://127.0.0.1:${(silent.address() as AddressInfo).port}`;
  const error = await thrownBy(new QGuide(url, { timeoutMs: 500, retry: AT_ONCE }).ready());
  assert.ok(error instanceof TimedOutError);
  assert.match(error.message, /raise timeoutMs or deadlineMs/);
  assert.equal(connections, 1);
});

test("a body that stops in its middle times out", async (t) => {
  const { url } = await answering(t, (_, response) => response.write('{"status":'));
  await assert.rejects(new QGuide(url, { timeoutMs: 100 }).ready(), TimedOutError);
});

test("no limit is no limit", async (t) => {
  const { url } = await answering(t, (_, response) => json(response, READY));
  await new QGuide(url, { timeoutMs: Infinity }).ready({ deadlineMs: 1e12 });
});

test("a deadline is told, shrinks with each attempt and is no field of any body", async (t) => {
  const { url, asked } = await answering(t, (_, response) => refuse(response, 503, "overloaded"));
  const client = new QGuide(url, { retry: { firstWaitMs: 10 } });
  await assert.rejects(client.act(TASK, { num_candidates: 2 }, { deadlineMs: 3000 }), RefusedError);
  const told = asked.map((one) => Number(one.headers["x-qguide-timeout-s"]));
  assert.equal(told.length, 3);
  assert.ok(
    told[0]! <= 3 && told[0]! > told[1]! && told[1]! > told[2]! && told[2]! > 0,
    told.join(),
  );
  assert.deepEqual(asked[0]?.body, { messages: TASK, num_candidates: 2 });
});

test("nothing is asked again after the deadline, nor is the server waited for much longer", async (t) => {
  const { url, asked } = await answering(t, (_, response, number) => {
    if (number === 1) refuse(response, 503, "overloaded", { "Retry-After": "5" });
  });
  const client = new QGuide(url, { retry: AT_ONCE });
  await assert.rejects(client.act(TASK, {}, { deadlineMs: 3000 }), qguide.OverloadedError);
  assert.equal(asked.length, 1);
  const began = performance.now();
  await assert.rejects(client.act(TASK, {}, { deadlineMs: 100 }), TimedOutError);
  const tookMs = performance.now() - began;
  assert.ok(tookMs > 1000 && tookMs < 5000, String(tookMs));
});

test("an abort ends the request with its own reason, and the server sees it", async (t) => {
  const controller = new AbortController();
  let gone = (): void => {};
  const seen = new Promise<void>((resolve) => (gone = resolve));
  const { url, asked } = await answering(t, (_, response) => {
    response.on("close", gone);
    controller.abort(new Error("the user left"));
  });
  const call = new QGuide(url, { retry: AT_ONCE }).act(TASK, {}, { signal: controller.signal });
  await assert.rejects(call, /^Error: the user left$/);
  await seen;
  assert.equal(asked.length, 1);
});

test("an abort ends a wait, and one that came before asks nothing", async (t) => {
  const controller = new AbortController();
  const { url, asked } = await answering(t, (_, response) => {
    refuse(response, 503, "overloaded", { "Retry-After": "9" });
    setTimeout(() => controller.abort(new Error("the user left")), 300);
  });
  const client = new QGuide(url, { retry: AT_ONCE });
  const began = performance.now();
  await assert.rejects(client.models({ signal: controller.signal }), /^Error: the user left$/);
  assert.ok(performance.now() - began < 8000);
  assert.equal(asked.length, 1);
  await assert.rejects(client.models({ signal: AbortSignal.abort() }), { name: "AbortError" });
  assert.equal(asked.length, 1);
});

test("a proxy's error page is no riddle", async () => {
  const page = (): Response =>
    new Response("<h1>Bad Gateway</h1>", { status: 502, statusText: "Bad Gateway" });
  await assert.rejects(clientOf(page).models(), (error) => {
    assert.ok(error instanceof qguide.UnavailableError);
    assert.match(
      error.message,
      /^HTTP 502 Bad Gateway from \/v1\/models \(request [0-9a-f]{32}\)$/,
    );
    return true;
  });
});

test("an answer of something else is no answer and says what it lacks", async () => {
  for (const text of ["<h1>Welcome</h1>", "null", "[]", '"hello"', '{"chosen": 0}']) {
    await assert.rejects(clientOf(() => new Response(text)).act(TASK), (error) => {
      assert.ok(error instanceof qguide.UnreadableAnswerError);
      assert.match(error.message, /POST \/v1\/act is not QGuide's.* \(it lacks action\)/);
      return true;
    });
  }
});

test("a server that is not ready says why", async (t) => {
  const { url, asked } = await answering(t, (_, response) =>
    json(response, { status: "unavailable", reason: "a thread is dead" }, 503),
  );
  const readiness = await new QGuide(url).ready();
  assert.deepEqual([readiness.status, readiness.reason], ["unavailable", "a thread is dead"]);
  assert.equal(asked.length, 1);
});

test("the key travels as a bearer, and a path before ours is kept", async (t) => {
  const { url, asked } = await answering(t, (_, response) => json(response, READY));
  await new QGuide(`${url}/agents/`, { apiKey: KEY }).ready();
  assert.equal(asked[0]?.path, "/agents/readyz");
  assert.equal(asked[0]?.headers.authorization, `Bearer ${KEY}`);
});

test("no key is in what is printed of a client or of an error", async (t) => {
  const { url } = await answering(t, (asked, response) => {
    if (asked.path === "/readyz") response.destroy();
    else if (asked.path === "/v1/models") response.end("garbage");
    else refuse(response, 401, "unauthorized");
  });
  const client = new QGuide(url, { apiKey: KEY, timeoutMs: 500, retry: AT_ONCE });
  const errors = [
    await thrownBy(client.ready()),
    await thrownBy(client.models()),
    await thrownBy(client.act(TASK)),
    await thrownBy(new QGuide(await nobodysUrl(), { apiKey: KEY, retry: AT_ONCE }).ready()),
    await thrownBy((async () => new QGuide(url, { apiKey: `${KEY}\n` }))()),
    await thrownBy((async () => new QGuide(`http://${KEY}@127.0.0.1`))()),
    await thrownBy((async () => new QGuide(`http://127.0.0.1/?key=${KEY}`))()),
    await thrownBy((async () => new QGuide(`${KEY}@`))()),
  ];
  for (const shown of [client, ...errors]) {
    assert.ok(!inspect(shown, { depth: 9, showHidden: true }).includes(KEY), inspect(shown));
  }
});

test("what no request can be made of is refused at once, with the remedy", () => {
  const made: [() => QGuide, RegExp][] = [
    [() => new QGuide("localhost"), /baseUrl is not a URL; give one such as http:\/\/127/],
    [() => new QGuide("ftp://localhost"), /protocol ftp:; it must be http: or https:/],
    [() => new QGuide("http://me@localhost"), /leave it out, and pass a key as apiKey/],
    [() => new QGuide(undefined, { apiKey: "" }), /apiKey is empty or has characters/],
  ];
  for (const [make, message] of made) assert.throws(make, { name: "TypeError", message });
});

test("rerank sends a text as the query and turns as the history", async () => {
  const sent: unknown[] = [];
  const client = clientOf((_, init) => {
    sent.push(bodyOf(init));
    return Response.json({ results: [] });
  });
  const options = { top_n: 1, q_model: "shop", episode_id: "e" };
  await client.rerank("find a mug", ["a", "b"], options);
  await client.rerank(TASK, ["a", "b"], options);
  const common = { documents: ["a", "b"], top_n: 1, model: "shop", episode_id: "e" };
  assert.deepEqual(sent, [
    { query: "find a mug", ...common },
    { messages: TASK, ...common },
  ]);
});

test("an option that is left out is the server's to choose", async () => {
  const client = clientOf((_, init) => {
    assert.deepEqual(bodyOf(init), { messages: TASK });
    return Response.json({ action: "", chosen: 0, candidates: [] });
  });
  await client.act(TASK, { seed: undefined });
});
