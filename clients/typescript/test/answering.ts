/** Servers that answer as a test says, and clients that hardly wait. */

import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import type { TestContext } from "node:test";
import { type ClientOptions, QGuide } from "qguide-client";

export const AT_ONCE = { firstWaitMs: 1 };
export const TASK = [
  { role: "user" as const, content: "You see a desk 1. Your task is to: look around." },
];
export const READY = { status: "ok" };

/** One request as it came. */
export interface Asked {
  method: string;
  path: string;
  headers: IncomingMessage["headers"];
  body: unknown;
}

export type Answer = (asked: Asked, response: ServerResponse, number: number) => void;

/** A server for the length of a test, what it was asked so far and over how many connections. */
export async function answering(
  t: TestContext,
  answer: Answer,
): Promise<{ url: string; asked: Asked[]; connections: Set<Socket> }> {
  const asked: Asked[] = [];
  const connections = new Set<Socket>();
  const server = createServer((request, response) => {
    const pieces: Buffer[] = [];
    request.on("data", (piece: Buffer) => pieces.push(piece));
    request.on("end", () => {
      const text = Buffer.concat(pieces).toString();
      const { method = "", url: path = "", headers } = request;
      const one = { method, path, headers, body: text ? (JSON.parse(text) as unknown) : undefined };
      asked.push(one);
      answer(one, response, asked.length);
    });
  });
  server.on("connection", (socket) => connections.add(socket));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return { url, asked, connections };
}

export function json(
  response: ServerResponse,
  body: unknown,
  status = 200,
  headers: Record<string, string> = {},
): void {
  response.writeHead(status, { "Content-Type": "application/json", ...headers });
  response.end(JSON.stringify(body));
}

/** A refusal in the server's shape. */
export function refuse(
  response: ServerResponse,
  status: number,
  code: string,
  headers: Record<string, string> = {},
): void {
  const error = { code, message: "not now; come back later", request_id: "r1" };
  json(response, { error }, status, { "X-Request-ID": "r1", ...headers });
}

/** A client whose requests a function answers. */
export function clientOf(
  answer: (url: string, init: RequestInit) => Response,
  options: ClientOptions = {},
): QGuide {
  const fetch = async (url: string, init: RequestInit): Promise<Response> => answer(url, init);
  return new QGuide("http://qguide.test", { retry: AT_ONCE, ...options, fetch });
}

export function bodyOf(init: RequestInit): Record<string, unknown> {
  return JSON.parse(String(init.body)) as Record<string, unknown>;
}

/** What a promise rejects with. */
export async function thrownBy(promise: Promise<unknown>): Promise<unknown> {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("nothing was thrown");
}
