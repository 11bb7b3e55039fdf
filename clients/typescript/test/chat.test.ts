/** Chat completions in pieces. */

import assert from "node:assert/strict";
import { test } from "node:test";
import * as qguide from "qguide-client";
import { type ChatChunk, QGuide, TimedOutError, UnreachableError } from "qguide-client";
import { answering, AT_ONCE, bodyOf, clientOf, refuse, TASK, thrownBy } from "./answering.js";

const LINE_ENDS_OF_UNICODE = "one\u2028two\u0085three\u000b";
const DONE = "data: [DONE]\n\n";
const GOOD = `: still working\n\n${event("ein Käse 🧀")}${event(LINE_ENDS_OF_UNICODE)}${DONE}`;
const TEXTS = ["ein Käse 🧀", LINE_ENDS_OF_UNICODE];

function event(content: string): string {
  const choices = [{ index: 0, delta: { content }, finish_reason: null }];
  return `data: ${JSON.stringify({ id: "c1", model: "m", choices })}\n\n`;
}

/** A body that comes in exactly these pieces, and then ends or fails. */
function streamed(pieces: readonly Uint8Array[], failure?: Error): Response {
  const left = [...pieces];
  const body = new ReadableStream<Uint8Array>({
    pull(controller) {
      const piece = left.shift();
      if (piece) controller.enqueue(piece);
      else if (failure) controller.error(failure);
      else controller.close();
    },
  });
  return new Response(body);
}

function cut(text: string, size = Infinity): Uint8Array[] {
  const bytes = new TextEncoder().encode(text);
  const pieces: Uint8Array[] = [];
  for (let start = 0; start < bytes.length; start += size)
    pieces.push(bytes.subarray(start, start + size));
  return pieces;
}

async function read(client: QGuide): Promise<(string | null | undefined)[]> {
  const texts: (string | null | undefined)[] = [];
  for await (const chunk of client.chatStream(TASK)) texts.push(textOf(chunk));
  return texts;
}

function textOf(chunk: ChatChunk | void): string | null | undefined {
  return chunk?.choices[0]?.delta.content;
}

for (const end of ["\n", "\r\n", "\r"]) {
  test(`chunks are the same however the bytes are cut, with ${JSON.stringify(end)}`, async () => {
    for (const size of [1, 2, 3, 7, 10_000]) {
      const pieces = cut(GOOD.replaceAll("\n", end), size);
      assert.deepEqual(await read(clientOf(() => streamed(pieces))), TEXTS, `in pieces of ${size}`);
    }
  });
}

test("an event may have several lines and other fields", async () => {
  const lines = JSON.stringify(JSON.parse(event("a").slice("data: ".length)), null, 1).split("\n");
  const text = `event: chunk\nid: 7\nretry\n${lines.map((line) => `data:${line}\n`).join("")}\n${DONE}`;
  assert.deepEqual(await read(clientOf(() => streamed(cut(text)))), ["a"]);
});

test("a line without a colon is a field with nothing in it", async () => {
  const text = `dataX\ndata${event("a").slice("data".length)}data\n\n${DONE}`;
  assert.deepEqual(await read(clientOf(() => streamed(cut(text)))), ["a"]);
  const halves = event("a").slice("data: ".length).replace('"id"', '\ndata\ndata: "id"');
  assert.deepEqual(await read(clientOf(() => streamed(cut(`data: ${halves}${DONE}`)))), ["a"]);
});

test("nothing is read after the end", async () => {
  const pieces = [...cut(event("a") + DONE + event("b")), ...cut("data: garbage\n\n")];
  assert.deepEqual(await read(clientOf(() => streamed(pieces))), ["a"]);
});

test("a chunk is given as soon as it is whole", async (t) => {
  const { url } = await answering(t, (_, response) =>
    response.write(event("a").replaceAll("\n", "\r\n")),
  );
  const stream = new QGuide(url).chatStream(TASK);
  assert.equal(textOf((await stream.next()).value), "a");
  await stream.return();
});

test("a stream that breaks off is no answer", async () => {
  for (const text of [event("a"), event("a") + DONE.trimEnd(), "", event("a").trimEnd()]) {
    await assert.rejects(read(clientOf(() => streamed(cut(text)))), (error) => {
      assert.ok(error instanceof UnreachableError);
      assert.match(error.message, /broke off before its end; send the request again \(request [0-9a-f]{32}\)/);
      return true;
    });
  }
});

test("a failure in the stream is thrown as its class, with the request's id", async () => {
  const error = {
    error: { code: "scorer_unavailable", message: "the Q model is gone; try again" },
  };
  const pieces = cut(`${event("a")}data: ${JSON.stringify(error)}\n\n`);
  const stream = clientOf(() => streamed(pieces)).chatStream(TASK);
  assert.equal(textOf((await stream.next()).value), "a");
  const thrown = await thrownBy(stream.next());
  assert.ok(thrown instanceof qguide.ScorerUnavailableError);
  assert.match(thrown.message, /^the Q model is gone; try again \(request [0-9a-f]{32}\)$/);
  assert.deepEqual([thrown.code, thrown.status], ["scorer_unavailable", 200]);
});

test("a failure in words of another server is thrown, too", async () => {
  for (const [error, said] of [
    ["out of memory", /out of memory/],
    [null, /failed in the stream/],
  ] as const) {
    const pieces = cut(`data: ${JSON.stringify({ error })}\n\n`);
    await assert.rejects(read(clientOf(() => streamed(pieces))), {
      name: "RefusedError",
      message: said,
    });
  }
});

test("what is no chunk is shown", async () => {
  for (const data of ["hello", '"hello"', '{"hello": 1}']) {
    await assert.rejects(read(clientOf(() => streamed(cut(`data: ${data}\n\n`)))), {
      name: "UnreadableAnswerError",
      message: /is not a completion chunk: ".*hello/,
    });
  }
});

test("the client sends what it was given", async () => {
  const client = clientOf((_, init) => {
    assert.deepEqual(bodyOf(init), {
      messages: TASK,
      stream: true,
      stream_options: { include_usage: true },
      qguide: { num_candidates: 3 },
      top_p: 0.9,
      temperature: 0.5,
    });
    return streamed(cut(GOOD));
  });
  const options = {
    qguide: { num_candidates: 3 },
    temperature: undefined,
    extra_body: { top_p: 0.9, temperature: 0.5, stream: false, messages: [] },
  };
  let count = 0;
  for await (const _ of client.chatStream(TASK, options)) count += 1;
  assert.equal(count, 2);
});

test("a stream is asked for again only before it began", async (t) => {
  const { url, asked } = await answering(t, (_, response, number) => {
    if (number === 1) refuse(response, 503, "overloaded", { "Retry-After": "0" });
    else response.write(event("a"), () => setTimeout(() => response.destroy(), 20));
  });
  const stream = new QGuide(url, { retry: AT_ONCE }).chatStream(TASK);
  assert.equal(textOf((await stream.next()).value), "a");
  await assert.rejects(stream.next(), UnreachableError);
  assert.equal(asked.length, 2);
});

test("a connection that breaks in the stream is told as ours, with its cause", async () => {
  const broken = new TypeError("terminated", { cause: new Error("other side closed") });
  const error = await thrownBy(read(clientOf(() => streamed(cut(event("a")), broken))));
  assert.ok(error instanceof UnreachableError);
  assert.match(error.message, /\(other side closed\)/);
  assert.equal(error.cause, broken);
});

test("signs of life keep a stream open, silence does not", async (t) => {
  const { url } = await answering(t, (_, response) => {
    let beats = 0;
    const beat = setInterval(() => {
      beats += 1;
      if (beats < 5) response.write(": still working\n\n");
      else clearInterval(beat);
      if (beats === 5) response.write(event("a"));
    }, 500);
  });
  const stream = new QGuide(url, { timeoutMs: 1500 }).chatStream(TASK);
  assert.equal(textOf((await stream.next()).value), "a");
  await assert.rejects(stream.next(), TimedOutError);
});

test("a slow reader is not taken for a silent server", async (t) => {
  const { url } = await answering(t, (_, response) => {
    response.write(event("a"));
    setTimeout(() => response.end(event("b") + DONE), 50);
  });
  const texts: unknown[] = [];
  for await (const chunk of new QGuide(url, { timeoutMs: 500 }).chatStream(TASK)) {
    texts.push(textOf(chunk));
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  assert.deepEqual(texts, ["a", "b"]);
});

test("streams one after the other share a connection", async (t) => {
  const { url, asked, connections } = await answering(t, (_, response) => {
    response.write(GOOD);
    setTimeout(() => response.end(), 20);
  });
  const client = new QGuide(url);
  for (let time = 0; time < 10; time += 1) assert.deepEqual(await read(client), TEXTS);
  assert.equal(asked.length, 10);
  assert.ok(connections.size <= 2, `${connections.size} connections`);
});

test("a stream that has said its last word ends, whatever comes of its connection", async (t) => {
  const { url } = await answering(t, (_, response, number) => {
    response.write(GOOD);
    if (number === 1) {
      setTimeout(() => response.destroy(), 50);
      return;
    }
    const beat = setInterval(() => response.write(": still here\n"), 50);
    t.after(() => clearInterval(beat));
  });
  const client = new QGuide(url, { retry: { attempts: 1 } });
  const began = performance.now();
  for (const _ of ["broken", "endless"]) assert.deepEqual(await read(client), TEXTS);
  const tookMs = performance.now() - began;
  assert.ok(tookMs > 900 && tookMs < 5000, String(tookMs));
});

test("leaving the loop hangs up", async (t) => {
  let gone = (): void => {};
  const seen = new Promise<void>((resolve) => (gone = resolve));
  const { url } = await answering(t, (_, response) => {
    response.on("close", gone);
    response.write(event("a"));
  });
  for await (const chunk of new QGuide(url).chatStream(TASK)) {
    assert.equal(textOf(chunk), "a");
    break;
  }
  await seen;
});

test("an abort ends a stream with its own reason", async (t) => {
  const { url } = await answering(t, (_, response) => response.write(event("a")));
  const controller = new AbortController();
  const stream = new QGuide(url).chatStream(TASK, {}, { signal: controller.signal });
  await stream.next();
  controller.abort(new Error("the user left"));
  await assert.rejects(stream.next(), /^Error: the user left$/);
});

test("an abort between two chunks is seen though all had come", async (t) => {
  const { url } = await answering(t, (_, response) => {
    response.write(event("a"));
    setTimeout(() => response.end(event("b") + DONE), 50);
  });
  const controller = new AbortController();
  const stream = new QGuide(url).chatStream(TASK, {}, { signal: controller.signal });
  await stream.next();
  await new Promise((resolve) => setTimeout(resolve, 500));
  controller.abort(new Error("the user left"));
  await assert.rejects(stream.next(), /^Error: the user left$/);
});

test("a stream that is refused is refused", async (t) => {
  const { url } = await answering(t, (_, response) => refuse(response, 401, "unauthorized"));
  await assert.rejects(new QGuide(url).chatStream(TASK).next(), qguide.UnauthorizedError);
});
