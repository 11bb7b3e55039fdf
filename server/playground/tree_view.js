/** A tree as a list that is indented where it branches, and as a drawing of the whole. */

import { axisOf, placeOn, splitReply, written } from "./candidates.js";
import { counted, el, svg } from "./dom.js";
import { statesOf } from "./trees.js";

/**
 * @typedef {import("./trees.js").Tree} Tree
 * @typedef {import("./trees.js").TreeNode} TreeNode
 * @typedef {import("./candidates.js").Axis} Axis
 */

const STEP = { x: 34, y: 18 };
const EDGE = 12;

/**
 * What a node is worth: its label, or Q where it has none.
 * @param {TreeNode} node
 */
const valueOf = ({ label, q }) => label ?? q;

/** @param {Tree} tree */
function childrenOf(tree) {
  return new Map(statesOf(tree).map(({ at, children }) => [at, children]));
}

/** @param {Tree} tree */
export function listOf(tree) {
  const children = childrenOf(tree);
  const values = (of) => tree.nodes.map(of).filter((value) => value !== null);
  const axes = { label: axisOrNull(values(({ label }) => label)), q: axisOrNull(values(({ q }) => q)) };
  return el("ol", { className: "branches nodes" }, ...runs(children.get(0) ?? [], children, axes));
}

/** @param {number[]} values */
const axisOrNull = (values) => (values.length ? axisOf(values) : null);

/**
 * Siblings and what follows them; an only child stands on its parent's level.
 * @param {TreeNode[]} siblings
 * @param {Map<number, TreeNode[]>} children
 * @param {{ label: Axis | null, q: Axis | null }} axes
 */
function runs(siblings, children, axes) {
  if (siblings.length === 1) {
    const items = [];
    for (let [node] = siblings; ; ) {
      items.push(el("li", {}, rowOf(node, axes)));
      const next = children.get(node.id) ?? [];
      if (next.length !== 1) return next.length ? [...items, forkOf(next, children, axes)] : items;
      [node] = next;
    }
  }
  return siblings.length ? [forkOf(siblings, children, axes)] : [];
}

function forkOf(siblings, children, axes) {
  const forks = siblings.map((node) => {
    const rest = runs(children.get(node.id) ?? [], children, axes);
    return el("li", {}, rowOf(node, axes), rest.length ? el("ol", {}, ...rest) : null);
  });
  return el("li", {}, el("ol", { className: "forks" }, ...forks));
}

/**
 * @param {TreeNode} node
 * @param {{ label: Axis | null, q: Axis | null }} axes
 */
function rowOf(node, axes) {
  const { action, observation, label, q, note } = node;
  const pills = [
    node.taken && "taken",
    node.expert && "expert",
    node.count > 1 && `× ${node.count}`,
    node.terminated && `ends, reward ${written(node.reward, 2)}`,
    !node.valid && "not understood",
    note,
  ].filter(Boolean);
  const figures = [
    axes.label && label !== null ? figureOf("label", label, axes.label) : null,
    axes.q && q !== null ? figureOf("Q", q, axes.q) : null,
  ];
  return el(
    "div",
    { className: "node", title: observation },
    el("code", { textContent: splitReply(action).action }),
    ...pills.map((textContent) => el("span", { className: "count", textContent })),
    el("span", { className: "node-figures" }, ...figures),
  );
}

/**
 * @param {"label" | "Q"} name
 * @param {number} value
 * @param {Axis} axis
 */
function figureOf(name, value, axis) {
  const track = el("span", { className: name === "Q" ? "track b" : "track", "aria-hidden": "true" });
  const [from, to] = [placeOn(axis.origin, axis), placeOn(value, axis)].sort((a, b) => a - b);
  const bar = el("span", { className: value < axis.origin ? "bar below" : "bar" });
  bar.style.left = `${100 * from}%`;
  bar.style.width = `${100 * (to - from)}%`;
  track.append(bar);
  return el("span", { className: "node-figure" }, `${name} ${written(value, 3)} `, track);
}

/**
 * Where the bars of a tree begin, in words; "" if it has none.
 * @param {Tree} tree
 */
export function scaleOf(tree) {
  const told = (name, values) => {
    const axis = axisOrNull(values.filter((value) => value !== null));
    if (!axis) return "";
    const from = axis.origin === 0 ? "from 0" : `from ${written(axis.low, 3)}, not from 0,`;
    return `${name}: bars ${from} to ${written(axis.high, 3)}`;
  };
  const label = told(`label (${tree.target})`, tree.nodes.map((node) => node.label));
  const q = told(`Q (${tree.qBy})`, tree.nodes.map((node) => node.q));
  return [label, q].filter(Boolean).join(" · ");
}

/**
 * The whole tree: the root on the left, a circle for each action, in the colour of its value.
 * @param {Tree} tree
 */
export function drawingOf(tree) {
  const { nodes, title } = tree;
  const places = placesOf(tree);
  const width = EDGE * 2 + STEP.x * Math.max(0, ...[...places.values()].map(({ x }) => x));
  const height = EDGE * 2 + STEP.y * Math.max(0, ...[...places.values()].map(({ y }) => y));
  const at = (id) => {
    const { x, y } = places.get(id);
    return { x: EDGE + STEP.x * x, y: EDGE + STEP.y * y };
  };
  const label = `Tree of ${title} with ${counted(nodes.length, "action")}; the list below has the same`;
  const drawing = svg("svg", { class: "tree-drawing", role: "img", "aria-label": label, width, height });
  const axis = axisOrNull(nodes.map(valueOf).filter((value) => value !== null));
  for (const { id, parent } of nodes) {
    const [from, to] = [at(parent), at(id)];
    const middle = (from.x + to.x) / 2;
    const d = `M${from.x},${from.y}C${middle},${from.y} ${middle},${to.y} ${to.x},${to.y}`;
    drawing.append(svg("path", { class: "edge", d }));
  }
  drawing.append(svg("circle", { class: "root", cx: at(0).x, cy: at(0).y, r: 4 }));
  for (const node of nodes) drawing.append(circleOf(node, at(node.id), axis));
  return drawing;
}

/**
 * @param {TreeNode} node
 * @param {{ x: number, y: number }} place
 * @param {Axis | null} axis
 */
function circleOf(node, { x, y }, axis) {
  const value = valueOf(node);
  const says = `${splitReply(node.action).action}: ${value === null ? "no value" : written(value, 3)}`;
  const circle = svg("circle", { class: node.terminated ? "action ends" : "action", cx: x, cy: y, r: 6 }, svg("title", {}, says));
  if (value !== null && axis) {
    const share = Math.round(100 * placeOn(value, axis));
    circle.style.fill = `color-mix(in srgb, var(--accent) ${share}%, var(--bad))`;
  }
  return circle;
}

/**
 * Depth and row of each node, the root's included; a parent stands beside its first child.
 * @param {Tree} tree parents come before their children
 * @returns {Map<number, { x: number, y: number }>}
 */
function placesOf(tree) {
  const children = childrenOf(tree);
  const places = new Map([[0, { x: 0, y: 0 }]]);
  const waiting = [...(children.get(0) ?? [])].reverse().map((node) => ({ node, depth: 1 }));
  let row = 0;
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    const { node, depth } = next;
    places.set(node.id, { x: depth, y: row });
    const below = children.get(node.id) ?? [];
    if (!below.length) row += 1;
    waiting.push(...[...below].reverse().map((child) => ({ node: child, depth: depth + 1 })));
  }
  return places;
}
