/** The trees that were opened: which one is shown, and Q of this server's model for it. */

import { showError } from "./alert.js";
import { byId, counted, offer, show } from "./dom.js";
import { postScoreBatch } from "./server.js";
import { drawingOf, listOf, scaleOf } from "./tree_view.js";
import { historyOf, statesOf } from "./trees.js";

/** @typedef {import("./trees.js").Tree} Tree */

/** Larger trees are shown up to here: the browser draws more only slowly. */
const MOST_NODES = 3000;
/** States of one request; servers take 64 by default. */
const STATES_AT_ONCE = 16;

export class Forest {
  constructor() {
    /** @type {Tree[]} */
    this.trees = [];
    byId("tree-choice").addEventListener("change", () => this.showTree());
    byId("tree-score").addEventListener("click", () => this.score());
  }

  /** @param {Tree[]} trees */
  show(trees) {
    this.trees = trees;
    byId("forest").hidden = trees.length === 0;
    byId("tree-choice").replaceChildren();
    offer(byId("tree-choice"), trees.map((tree, index) => [String(index), titleOf(tree, index)]));
    if (trees.length) this.showTree();
  }

  /** @returns {Tree} */
  get tree() {
    return this.trees[Number(byId("tree-choice").value)];
  }

  showTree() {
    const { tree } = this;
    const { length } = tree.nodes;
    const shown = length > MOST_NODES ? { ...tree, nodes: tree.nodes.slice(0, MOST_NODES) } : tree;
    show(byId("tree-error"));
    byId("tree-facts").textContent =
      length > MOST_NODES ? `the first ${MOST_NODES} of ${length} actions` : counted(length, "action");
    byId("tree-first").textContent = tree.first;
    byId("tree-scale").textContent = scaleOf(shown);
    byId("tree-drawing").replaceChildren(drawingOf(shown));
    byId("tree-list").replaceChildren(listOf(shown));
  }

  /** Asks this server's Q model for every state's actions; the tree is sent to it. */
  async score() {
    const { tree } = this;
    const button = byId("tree-score");
    const states = statesOf(tree);
    button.disabled = true;
    show(byId("tree-error"));
    try {
      for (let start = 0; start < states.length; start += STATES_AT_ONCE) {
        byId("tree-status").textContent = `Scoring state ${start + 1} of ${states.length} …`;
        await this.scoreStates(tree, states.slice(start, start + STATES_AT_ONCE));
      }
    } catch (error) {
      showError(byId("tree-error"), error);
    } finally {
      byId("tree-status").textContent = "";
      button.disabled = false;
    }
    if (this.tree === tree) this.showQ();
  }

  /** Draws the tree again and keeps what is said about it. */
  showQ() {
    const { tree } = this;
    byId("tree-scale").textContent = scaleOf(tree);
    byId("tree-drawing").replaceChildren(drawingOf(tree));
    byId("tree-list").replaceChildren(listOf(tree));
  }

  /**
   * @param {Tree} tree
   * @param {ReturnType<typeof statesOf>} states
   */
  async scoreStates(tree, states) {
    const asked = states.map(({ at, children }) => {
      const replies = new Map(children.map((node) => [JSON.stringify(node.turns[0]), node.turns[0]]));
      return { messages: historyOf(tree, at), replies, children };
    });
    const items = asked.map(({ messages, replies }) => ({ messages, candidates: [...replies.values()] }));
    const { items: scored, q_model: qModel, q_model_version: version } = await postScoreBatch({ items });
    asked.forEach(({ replies, children }, index) => {
      const qs = new Map(scored[index].scores.map(({ index: at, q_value: q }) => [[...replies.keys()][at], q]));
      for (const node of children) node.q = qs.get(JSON.stringify(node.turns[0])) ?? null;
    });
    tree.qBy = `${qModel}@${version}`;
  }
}

/**
 * @param {Tree} tree
 * @param {number} index
 */
function titleOf({ title, nodes }, index) {
  return `${index + 1} · ${counted(nodes.length, "action")} · ${title.slice(-60)}`;
}
