/**
 * An agent without a model of its own: the server draws what it might do and chooses.
 *
 * node act-loop.ts http://127.0.0.1:8000   (Node ≥ 22.18; Node 20 runs it compiled, see README.md)
 */

import { argv } from "node:process";
import { QGuide } from "qguide-client";

/** Put your environment here; this one ends when the agent stands at the desk. */
class Room {
  reward: number | undefined;

  /** The first observation includes the task. */
  reset(): string {
    return "You see a desk 1 and a shelf 1. Your task is to: find the mug.";
  }

  /** Do what stands after "Action:". */
  step(reply: string): string {
    if (!reply.endsWith("Action: go to desk 1")) return "Nothing happens.";
    this.reward = 1;
    return "On the desk 1, you see a mug 1.";
  }
}

const MAX_STEPS = 10;
const room = new Room();
const episode = new QGuide(argv[2]).episode({ num_candidates: 5, seed: 0 });
let observation = room.reset();
for (let step = 0; step < MAX_STEPS && room.reward === undefined; step += 1) {
  observation = room.step(await episode.act(observation));
}
const { steps } = await episode.finish(room.reward ?? 0);
console.log(`${observation} Reward ${room.reward} after ${steps} steps.`);
