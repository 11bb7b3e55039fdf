/**
 * Trees out of rows that the jobs wrote. Pure.
 *
 *     qguide explore, the server    trees: actions and their effects; a search's values
 *     qguide label                  the label of each node, by its id
 *     qguide groups, rro            the candidates of each step and how they continued
 *
 * @typedef {{ id: number, parent: number, action: string, observation: string, reward: number,
 *   terminated: boolean, valid: boolean, expert: boolean, taken: boolean, count: number,
 *   label: number | null, q: number | null, note: string, turns: Turn[] }} TreeNode
 *   `turns` are the action and what was observed, as messages
 * @typedef {{ title: string, first: string, system: string | null, nodes: TreeNode[], target: string,
 *   qBy: string }} Tree `target` says what the labels are, `qBy` where Q comes from; "" without any
 */

import { plainTurn, textOf } from "./messages.js";

/** @typedef {import("./messages.js").Turn} Turn */

const EXPERT = "expert";

/**
 * The trees of some rows: one for each tree and each episode of decision groups. Labels go to the
 * tree of their task that has their nodes; without one, they are a tree themselves.
 * @param {{ trees: any[], labels: any[], groups: any[] }} rows checked ones
 * @returns {Tree[]}
 */
export function treesOf({ trees, labels, groups }) {
  const drawn = trees.map(treeOf);
  for (const [task, paths] of byTask(labels)) {
    const labelled = labelledTree(task, paths);
    const index = trees.findIndex((tree, at) => tree.task_id === task && hasAll(drawn[at], labelled));
    if (index < 0) drawn.push(labelled);
    else addLabels(drawn[index], labelled);
  }
  return [...drawn, ...groups.map(groupTree)];
}

/** @returns {Tree} */
function treeOf({ task_id: title, first_observation: first, system = null, nodes, values = [], judged = [] }) {
  const judgements = new Map(judged.map((one) => [`${one.parent} ${one.action}`, one]));
  const judge = judged[0]?.judge ?? "";
  return {
    title,
    first,
    system,
    nodes: nodes.map((node, index) => ({
      ...plainNode(node),
      id: index + 1,
      q: values[index] ?? judgements.get(`${node.parent} ${node.action}`)?.q_value ?? null,
    })),
    target: "",
    qBy: values.length ? "the search's mean outcome" : judge,
  };
}

/** @returns {TreeNode} */
function plainNode(node) {
  const { parent, action, observation, reward = 0, terminated = false, valid = true, source = "" } = node;
  const { reply, observed } = node;
  const effect = { reward, terminated, valid, expert: source === EXPERT, taken: false };
  const said = reply ? turnOfRow(reply) : { role: "assistant", content: action };
  const seen = observed ? observed.map(turnOfRow) : [{ role: "user", content: observation }];
  const turns = [said, ...seen];
  return { id: 0, parent, action, observation, ...effect, count: 1, label: null, q: null, note: "", turns };
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
 * @param {any[]} rows
 * @returns {Map<string, any[]>}
 */
function byTask(rows) {
  const tasks = new Map();
  for (const row of rows) tasks.set(row.task_id, [...(tasks.get(row.task_id) ?? []), row]);
  return tasks;
}

/**
 * The tree of overlapping paths; a node's label is in one of them.
 * @param {string} title
 * @param {any[]} paths
 * @returns {Tree}
 */
function labelledTree(title, paths) {
  /** @type {Map<number, TreeNode>} */
  const known = new Map();
  for (const { messages, q_values: labels, node_ids: ids, parent_ids: parents, last_observation: last } of paths) {
    const at = messages.flatMap(({ role }, index) => (role === "assistant" ? [index] : []));
    at.forEach((index, step) => {
      const end = at[step + 1] ?? messages.length;
      const seen = messages.slice(index + 1, end);
      const observation = seen.map(({ content }) => content).join("\n") || last || "";
      const turn = turnOfRow(messages[index]);
      const node = { parent: parents[step], action: textOf(turn), observation, reply: messages[index] };
      const before = known.get(ids[step]);
      const now = { ...plainNode({ ...node, observed: seen.length ? seen : null }), id: ids[step] };
      // A path ends with its leaf's action; another one may go on from there.
      known.set(ids[step], { ...(before && !seen.length ? before : now), label: labels[step] ?? before?.label ?? null });
    });
  }
  const start = paths[0].messages;
  const hasSystem = start[0]?.role === "system";
  return {
    title,
    first: start[hasSystem ? 1 : 0]?.content ?? "",
    system: hasSystem ? start[0].content : null,
    nodes: [...known.values()].sort((a, b) => a.id - b.id),
    target: String(paths[0].target),
    qBy: "",
  };
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
function groupTree({ task_id: title, first_observation: first, system = null, decisions }) {
  /** @type {TreeNode[]} */
  const nodes = [];
  let parent = 0;
  for (const { candidates, chosen } of decisions) {
    const start = nodes.length + 1;
    candidates.forEach((candidate, index) => {
      const { count, continuations } = candidate;
      const steps = mean(continuations.map((one) => one.steps));
      nodes.push({
        ...plainNode({ ...candidate, parent }),
        id: start + index,
        taken: index === chosen,
        count,
        label: mean(continuations.map((one) => one.outcome_reward)),
        note: `${steps.toFixed(1)} steps to the end`,
      });
    });
    parent = start + chosen;
  }
  return { title, first, system, nodes, target: "mean outcome of the continuations", qBy: "" };
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
