/**
 * Trees out of rows that the jobs wrote. Pure.
 *
 *     qguide explore, the server    trees: actions and their effects, with a search's or judge's values
 *     qguide label                  the same with a column of labels
 *     qguide groups, rro            the candidates of each step of a path, and their roll-outs
 *
 * @typedef {{ id: number, parent: number, action: string, observation: string, reward: number,
 *   terminated: boolean, valid: boolean, expert: boolean, taken: boolean, count: number,
 *   label: number | null, q: number | null, note: string, turns: Turn[] }} TreeNode
 *   `turns` are the action and what was observed, as messages
 * @typedef {{ title: string, first: string, system: string | null, nodes: TreeNode[], target: string,
 *   qBy: string }} Tree `target` says what the labels are, `qBy` where Q comes from; "" without any
 */

import { plainTurn } from "./messages.js";

/** @typedef {import("./messages.js").Turn} Turn */

const EXPERT = "expert";

/**
 * The trees of some rows. A tree with labels brings them to the tree of its task that has its nodes;
 * without one, it is drawn itself. Decision groups are drawn last.
 * @param {any[]} rows checked ones
 * @returns {Tree[]}
 */
export function treesOf(rows) {
  const groups = rows.filter(isDecided);
  const trees = rows.filter((row) => !isDecided(row));
  /** @type {Tree[]} */
  const drawn = [];
  for (const tree of [...trees.map(treeOf)].sort((a, b) => Number(!!a.target) - Number(!!b.target))) {
    const same = tree.target && drawn.find((one) => one.title === tree.title && hasAll(one, tree));
    if (same) addLabels(same, tree);
    else drawn.push(tree);
  }
  return [...drawn, ...groups.map(groupTree)];
}

/** Columns that say where Q comes from; any other is of labels. */
const SEARCH = "mcts";
const VISITS = "visits";
const JUDGE = "judge:";

/** @returns {Tree} */
function treeOf({ task_id: title, first_observation: first, system = null, nodes, values = {} }) {
  const names = Object.keys(values);
  const searched = names.includes(VISITS);
  const judge = names.find((name) => name.startsWith(JUDGE));
  const q = searched ? SEARCH : judge;
  const target = names.find((name) => ![q, VISITS].includes(name) && !name.startsWith(JUDGE)) ?? "";
  return {
    title,
    first,
    system,
    nodes: nodes.map((node, index) => ({
      ...plainNode(node),
      id: index + 1,
      label: values[target]?.[index] ?? null,
      q: values[q]?.[index] ?? null,
    })),
    target,
    qBy: searched ? "the search's mean outcome" : (judge?.slice(JUDGE.length) ?? ""),
  };
}

const isDecided = ({ nodes }) => nodes.some(({ rollouts = [] }) => rollouts.length);

/** @returns {TreeNode} */
function plainNode(node) {
  const { parent, action, observation, reward = 0, terminated = false, valid = true, source = "" } = node;
  const { reply, observed, taken = false, count = 1 } = node;
  const effect = { reward, terminated, valid, expert: source === EXPERT, taken };
  const said = reply ? turnOfRow(reply) : { role: "assistant", content: action };
  const seen = observed ? observed.map(turnOfRow) : [{ role: "user", content: observation }];
  const turns = [said, ...seen];
  return { id: 0, parent, action, observation, ...effect, count, label: null, q: null, note: "", turns };
}

/**
 * A message of a row in the server's shape.
 * @returns {Turn}
 */
function turnOfRow({ role, content, tool_calls: calls = [], tool_call_id: callId }) {
  const called = calls.map(({ id = "", name, arguments: given, kind }) =>
    kind === "custom"
      ? { id, type: "custom", custom: { name, input: given } }
      : { id, type: "function", function: { name, arguments: given } },
  );
  return plainTurn({ role, content: called.length ? content || null : content, tool_calls: called, tool_call_id: callId });
}

/**
 * Whether a tree has all nodes of another.
 * @param {Tree} tree
 * @param {Tree} other
 */
function hasAll({ nodes }, other) {
  return other.nodes.every(({ id, action }) => nodes[id - 1]?.action === action);
}

/**
 * @param {Tree} tree
 * @param {Tree} labelled
 */
function addLabels(tree, labelled) {
  tree.target = labelled.target;
  for (const { id, label } of labelled.nodes) tree.nodes[id - 1].label = label;
}

/**
 * A played episode whose steps have the candidates that were not taken beside the one that was.
 * @returns {Tree}
 */
function groupTree(row) {
  const rolledOut = row.nodes.map(({ rollouts = [] }) => rollouts);
  const tree = treeOf(row);
  const nodes = tree.nodes.map((node, index) => {
    if (!rolledOut[index].length) return node;
    const steps = mean(rolledOut[index].map((one) => one.steps));
    const label = mean(rolledOut[index].map((one) => one.outcome_reward));
    return { ...node, label, note: `${steps.toFixed(1)} steps to the end` };
  });
  return { ...tree, nodes, target: "mean outcome of the roll-outs" };
}

/** @param {number[]} values at least one */
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/**
 * The states of a tree with the actions that were tried in them: the root's, then each node's.
 * @param {Tree} tree
 * @returns {{ at: number, children: TreeNode[] }[]}
 */
export function statesOf({ nodes }) {
  /** @type {Map<number, TreeNode[]>} */
  const children = new Map();
  for (const node of nodes) children.set(node.parent, [...(children.get(node.parent) ?? []), node]);
  return [...children].map(([at, found]) => ({ at, children: found }));
}

/**
 * The history of the state after a node; 0 is the root.
 * @param {Tree} tree
 * @param {number} at
 * @returns {import("./messages.js").Turn[]}
 */
export function historyOf({ nodes, first, system }, at) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const turns = [];
  for (let node = byId.get(at); node; node = byId.get(node.parent)) turns.unshift(...node.turns);
  turns.unshift({ role: "user", content: first });
  return system === null ? turns : [{ role: "system", content: system }, ...turns];
}
