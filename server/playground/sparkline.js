/** Q over an episode in the size of a word. */

import { written } from "./candidates.js";
import { el, svg } from "./dom.js";

const SIZE = { width: 120, height: 28 };
const EDGE = 4;

/** @param {(number | null)[]} qs */
export function lineOf(qs) {
  const read = qs.filter((q) => q !== null);
  if (!read.length) return el("span", { className: "facts sparkline", textContent: "no Q: no choices" });
  const label = `Q from step to step: ${qs.map((q) => written(q, 2)).join(", ")}`;
  const drawing = svg("svg", { class: "sparkline", role: "img", "aria-label": label, ...SIZE });
  const [low, high] = [Math.min(...read), Math.max(...read)];
  const x = (index) => EDGE + (qs.length > 1 ? index / (qs.length - 1) : 0.5) * (SIZE.width - 2 * EDGE);
  const y = (q) => SIZE.height - EDGE - (high > low ? (q - low) / (high - low) : 0.5) * (SIZE.height - 2 * EDGE);
  const points = qs.flatMap((q, index) => (q === null ? [] : [[x(index), y(q)]]));
  if (points.length > 1) drawing.append(svg("polyline", { class: "taken-line", points: points.join(" ") }));
  drawing.append(...points.map(([cx, cy]) => svg("circle", { class: "taken", cx, cy, r: 2 })));
  return drawing;
}
