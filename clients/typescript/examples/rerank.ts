/**
 * An agent on a hosted model: you draw the candidates, the server says which is best.
 *
 * node rerank.ts http://127.0.0.1:8000   (Node ≥ 22.18; Node 20 runs it compiled, see README.md)
 */

import { argv } from "node:process";
import { type Messages, QGuide } from "qguide-client";

const HISTORY: Messages = [
  { role: "user", content: "You see a desk 1 and a shelf 1. Your task is to: find the mug." },
];

/** Ask your own model for several replies here (`n: 3`), and drop those that repeat. */
function draw(): string[] {
  return [
    "Thought: I should look around first.\nAction: look",
    "Thought: A mug may stand on the desk.\nAction: go to desk 1",
    "Thought: What do I carry?\nAction: inventory",
  ];
}

const actionOf = (reply: string | undefined): string | undefined => reply?.split("\n").at(-1);

const candidates = draw();
const { scores, chosen } = await new QGuide(argv[2]).score(HISTORY, candidates);
for (const { index, q_value } of scores) {
  console.log(`${q_value.toFixed(3).padStart(6)}  ${actionOf(candidates[index])}`);
}
console.log(`chosen: ${actionOf(candidates[chosen])}`);
