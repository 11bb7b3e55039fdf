/** Q over the steps of an episode, as a small drawing. */

import { axisOf, placeOn, written } from "./candidates.js";
import { svg } from "./dom.js";

/**
 * @typedef {{ qs: number[], q: number | null }} Point a step: Q of its candidates, and of the one
 *   that was taken (or is about to be)
 */

const HEIGHT = 170;
const EDGE = { top: 14, right: 16, bottom: 26, left: 56 };
const MOST_NUMBERS = 12;

/**
 * A chart in `place` that fits its width; returns what draws other steps.
 * @param {HTMLElement} place
 * @returns {(points: Point[], current?: number) => void}
 */
export function chartIn(place) {
  /** @type {Point[]} */
  let points = [];
  let current = -1;
  const redraw = () => {
    if (points.length && place.clientWidth) {
      place.replaceChildren(drawingOf(points, current, place.clientWidth));
    }
  };
  new ResizeObserver(redraw).observe(place);
  return (given, index = -1) => {
    points = given;
    current = index;
    place.replaceChildren();
    redraw();
  };
}

/**
 * @param {Point[]} points
 * @param {number} current
 * @param {number} width
 */
function drawingOf(points, current, width) {
  const attributes = { class: "chart", role: "img", width, height: HEIGHT };
  const read = points.flatMap(({ qs, q }) => (q === null ? qs : [...qs, q]));
  const drawing = svg("svg", { ...attributes, "aria-label": inWords(points) });
  if (!read.length) {
    const said = "no Q was read: no step had different candidates to score";
    drawing.append(svg("text", { x: width / 2, y: HEIGHT / 2, class: "none" }, said));
    return drawing;
  }
  const place = placesOf(points.length, axisOf(read), width);
  drawing.append(...gridOf(place, width));
  points.forEach((point, index) => drawing.append(...stepOf(point, index, place, index === current)));
  drawing.append(...lineOf(points, place), ...numbersOf(points.length, place));
  return drawing;
}

/** Where a step and a Q lie in the drawing. */
function placesOf(count, axis, width) {
  const inner = { width: width - EDGE.left - EDGE.right, height: HEIGHT - EDGE.top - EDGE.bottom };
  return {
    axis,
    x: (index) => EDGE.left + (count > 1 ? (index + 0.5) / count : 0.5) * inner.width,
    y: (q) => EDGE.top + (1 - placeOn(q, axis)) * inner.height,
  };
}

function gridOf({ axis, y }, width) {
  return [axis.low, (axis.low + axis.high) / 2, axis.high].flatMap((q) => [
    svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(q), y2: y(q) }),
    svg("text", { class: "label q-label", x: EDGE.left - 8, y: y(q) + 4 }, written(q, 3)),
  ]);
}

/** The candidates of a step: their spread as a bar, each as a dot. */
function stepOf({ qs }, index, { x, y }, isCurrent) {
  const parts = [];
  const edge = { y: EDGE.top, width: 22, height: HEIGHT - EDGE.top - EDGE.bottom, rx: 4 };
  if (isCurrent) parts.push(svg("rect", { class: "current", x: x(index) - 11, ...edge }));
  if (!qs.length) return [...parts, svg("text", { class: "label", x: x(index), y: HEIGHT - EDGE.bottom - 4 }, "no Q")];
  const [low, high] = [Math.min(...qs), Math.max(...qs)];
  parts.push(svg("line", { class: "spread", x1: x(index), x2: x(index), y1: y(low), y2: y(high) }));
  parts.push(...qs.map((q) => svg("circle", { class: "offered", cx: x(index), cy: y(q), r: 2.5 })));
  return parts;
}

/** The taken action's Q, from step to step; broken where a step has none. */
function lineOf(points, { x, y }) {
  const runs = [[]];
  points.forEach(({ q }, index) => {
    if (q === null) runs.push([]);
    else runs.at(-1).push([x(index), y(q)]);
  });
  const lines = runs
    .filter((run) => run.length > 1)
    .map((run) => svg("polyline", { class: "taken-line", points: run.map(String).join(" ") }));
  const dots = runs.flat().map(([cx, cy]) => svg("circle", { class: "taken", cx, cy, r: 4.5 }));
  return [...lines, ...dots];
}

function numbersOf(count, { x }) {
  const every = Math.ceil(count / MOST_NUMBERS);
  return Array.from({ length: count }, (_, index) => index)
    .filter((index) => index % every === 0)
    .map((index) => svg("text", { class: "label", x: x(index), y: HEIGHT - 8 }, String(index + 1)));
}

/** @param {Point[]} points */
function inWords(points) {
  const steps = points.map(({ q }, index) => `step ${index + 1} ${written(q)}`);
  return `Q of the action taken: ${steps.join(", ")}`;
}
