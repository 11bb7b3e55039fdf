/** A state of ALFWorld in which the embedded policy would repeat what just failed, and Q would not. */

/** @typedef {import("./messages.js").Turn} Turn */

/** @type {readonly Turn[]} */
export const EXAMPLE = Object.freeze([
  {
    role: "user",
    content:
      "You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk 1, a drawer 5, " +
      "a drawer 4, a drawer 3, a drawer 2, a drawer 1, a garbagecan 1, a laundryhamper 1, a shelf 1, " +
      "and a sidetable 1.\n\nYour task is to: look at cellphone under the desklamp.",
  },
  {
    role: "assistant",
    content:
      "Thought: desklamp needs one cellphone. I search desk, bed, sidetable, shelf, drawer. " +
      "First is desk 1.\nAction: go to desk 1",
  },
  {
    role: "user",
    content:
      "You arrive at loc 9. On the desk 1, you see a alarmclock 1, a bowl 1, a box 1, a cd 3, " +
      "a cellphone 3, and a laptop 1.",
  },
  {
    role: "assistant",
    content:
      "Thought: cellphone 1 is here. desklamp needs one cellphone. I take it.\n" +
      "Action: take cellphone 1 from desk 1",
  },
  { role: "user", content: "Nothing happens." },
]);

export const EXAMPLE_CANDIDATES = Object.freeze([
  "Thought: cellphone 3 is here. desklamp needs one cellphone. I take it.\n" +
    "Action: take cellphone 3 from desk 1",
  "Thought: cellphone 1 is here. desklamp needs one cellphone. I take it.\n" +
    "Action: take cellphone 1 from desk 1",
]);
