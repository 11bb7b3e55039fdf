/** The states of an episode as a tree: a button each, indented where the episode branches. */

import { splitReply, written } from "./candidates.js";
import { el } from "./dom.js";
import { childrenOf, rootsOf } from "./episode.js";
import { textOf } from "./messages.js";

/** @typedef {import("./episode.js").Episode} Episode */

const TITLE_CHARACTERS = 60;

/**
 * @param {Episode} episode
 * @param {(at: number) => void} goTo
 */
export function branchesOf(episode, goTo) {
  return el("ol", { className: "branches" }, ...rootsOf(episode).flatMap((root) => run(episode, root, goTo)));
}

/**
 * A state and what follows, on one level as long as there is one way to go.
 * @param {Episode} episode
 * @param {number} first
 * @param {(at: number) => void} goTo
 */
function run(episode, first, goTo) {
  const items = [];
  for (let at = first; ; ) {
    const children = childrenOf(episode, at);
    const item = el("li", {}, buttonOf(episode, at, goTo));
    items.push(item);
    if (children.length > 1) {
      const forks = children.map((child) => el("li", {}, el("ol", {}, ...run(episode, child, goTo))));
      item.append(el("ol", { className: "forks" }, ...forks));
    }
    if (children.length !== 1) return items;
    [at] = children;
  }
}

/**
 * @param {Episode} episode
 * @param {number} at
 * @param {(at: number) => void} goTo
 */
function buttonOf(episode, at, goTo) {
  const { taken, turns } = episode.states[at];
  const what = taken ? splitReply(taken.text).action : `Start: ${ending(textOf(turns.at(-1) ?? { role: "user", content: "" }))}`;
  const q = taken ? el("span", { className: "q", textContent: written(taken.q) }) : null;
  const button = el("button", { type: "button", className: "state" }, el("span", { textContent: what }), q);
  if (at === episode.at) button.setAttribute("aria-current", "step");
  button.addEventListener("click", () => goTo(at));
  return button;
}

/** @param {string} text */
function ending(text) {
  const line = text.replaceAll(/\s+/g, " ").trim();
  return line.length > TITLE_CHARACTERS ? `… ${line.slice(-TITLE_CHARACTERS)}` : line;
}
