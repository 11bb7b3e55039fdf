/**
 * An agent that speaks OpenAI's API: only its base URL changes.
 *
 * npm install openai
 * node openai-sdk.ts http://127.0.0.1:8000   (Node ≥ 22.18; Node 20 runs it compiled, see README.md)
 */

import { argv, stdout } from "node:process";
import OpenAI from "openai";

const url = argv[2] ?? "http://127.0.0.1:8000";
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const model = (await client.models.list()).data[0]?.id ?? "";
const messages = [
  {
    role: "user" as const,
    content: "You see a desk 1 and a shelf 1. Your task is to: find the mug.",
  },
];
/** What OpenAI's types do not know is spread, and sent as it is. */
const guidance = { qguide: { num_candidates: 5 } };

const completion = await client.chat.completions.create({ model, messages, ...guidance });
console.log(completion.choices[0]?.message.content);

const stream = await client.chat.completions.create({ model, messages, stream: true, ...guidance });
for await (const chunk of stream) stdout.write(chunk.choices[0]?.delta.content ?? "");
console.log();
