/** A real state of ALFWorld, a few steps into a game that the embedded models know. */

/** @typedef {import("./messages.js").Turn} Turn */

/** @type {readonly Turn[]} */
export const EXAMPLE = Object.freeze([
  {
    role: "user",
    content:
      "You are in the middle of a room. Looking quickly around you, you see a cabinet 2, " +
      "a cabinet 1, a countertop 1, a fridge 1, a garbagecan 1, a microwave 1, and a sinkbasin 1." +
      "\n\nYour task is to: heat some apple and put it in garbagecan.",
  },
  {
    role: "assistant",
    content:
      "Thought: garbagecan 1 needs one hot apple. I search countertop, fridge, sinkbasin. " +
      "First is countertop 1.\nAction: go to countertop 1",
  },
  {
    role: "user",
    content:
      "You arrive at loc 3. On the countertop 1, you see a apple 1, a bowl 1, and a knife 1.",
  },
]);

export const EXAMPLE_CANDIDATES = Object.freeze([
  "Thought: apple 1 is here. garbagecan 1 needs one hot apple. I take it.\n" +
    "Action: take apple 1 from countertop 1",
  "Thought: Not here. garbagecan 1 needs one hot apple. Next is fridge 1.\nAction: go to fridge 1",
]);
