/** Candidates as bars of raw Q, the best on top. */

import { axisOf, groupsOf, placeOn, splitReply, summaryOf, written } from "./candidates.js";
import { el } from "./dom.js";

/**
 * @typedef {import("./candidates.js").Candidate} Candidate
 * @typedef {import("./candidates.js").Group} Group
 * @typedef {import("./candidates.js").Axis} Axis
 */

/**
 * @param {Candidate[]} candidates
 * @param {{ chosen?: string, taken?: string, pick?: string }} [marks] texts of candidates;
 *   `pick` names the radio buttons by which one can be taken
 */
export function barsOf(candidates, { chosen, taken, pick } = {}) {
  const groups = groupsOf(candidates);
  const summary = summaryOf(groups);
  const axis = summary && axisOf(groups.flatMap(({ q }) => (q === null ? [] : [q])));
  const rows = groups.map((group) => {
    const marks = marksOf(group, chosen, taken);
    const parts = [...rowOf(group, marks), axis && summary && trackOf(group, axis, summary.mean)];
    const radio = pick
      ? el("input", { type: "radio", name: pick, value: group.text, checked: group.text === chosen })
      : null;
    const body = el(pick ? "label" : "div", { className: "row" }, radio, ...parts);
    const className = group.text === chosen ? "candidate chosen" : "candidate";
    return el("li", { className }, body);
  });
  return el("div", { className: "bars" }, el("ol", {}, ...rows), axis && scaleOf(axis));
}

/**
 * "best 0.47 · mean 0.41 · gap 0.06", or that there is none.
 * @param {Candidate[]} candidates
 */
export function gapOf(candidates) {
  const summary = summaryOf(groupsOf(candidates));
  if (!summary) return "no Q was read";
  const { best, mean, gap } = summary;
  return `best ${written(best)} · mean ${written(mean)} · gap ${written(gap)}`;
}

/** @param {Group} group */
function marksOf({ text, count, note }, chosen, taken) {
  const marks = [];
  if (text === chosen) marks.push(el("span", { className: "mark", textContent: "chosen" }));
  if (text === taken) marks.push(el("span", { className: "mark", textContent: "taken" }));
  if (count > 1) marks.push(el("span", { className: "count", textContent: `× ${count}` }));
  if (note) marks.push(el("span", { className: "count", textContent: note }));
  return marks;
}

/**
 * @param {Group} group
 * @param {HTMLElement[]} marks
 */
function rowOf({ text, q }, marks) {
  const { thought, action } = splitReply(text);
  return [
    el("span", { className: "what" }, el("code", { textContent: action }), ...marks),
    el("span", { className: "q", textContent: written(q) }),
    thought ? el("span", { className: "thought", textContent: thought }) : null,
  ];
}

/**
 * @param {Group} group
 * @param {Axis} axis
 * @param {number} mean
 */
function trackOf({ q }, axis, mean) {
  const track = el("span", { className: "track", "aria-hidden": "true" });
  if (q !== null) {
    const [from, to] = [placeOn(axis.origin, axis), placeOn(q, axis)].sort((a, b) => a - b);
    const bar = el("span", { className: q < axis.origin ? "bar below" : "bar" });
    bar.style.left = percent(from);
    bar.style.width = percent(to - from);
    track.append(bar);
  }
  const tick = el("span", { className: "mean" });
  tick.style.left = percent(placeOn(mean, axis));
  track.append(tick);
  return track;
}

/** @param {Axis} axis */
function scaleOf({ low, high, origin }) {
  const from = origin === 0 ? "bars from 0" : `bars from ${written(low)}, not from 0`;
  return el(
    "p",
    { className: "scale" },
    el("span", { textContent: written(low) }),
    el("span", { className: "legend", textContent: `raw Q · ${from} · tick: mean` }),
    el("span", { textContent: written(high) }),
  );
}

/** @param {number} share */
function percent(share) {
  return `${(100 * share).toFixed(2)}%`;
}
