/**
 * Candidates as bars of raw Q, the best on top; a second model's Q below the first's, and the prior
 * and posterior where they chose.
 */

import { axisOf, groupsOf, placeOn, splitReply, summaryOf, written } from "./candidates.js";
import { el } from "./dom.js";

/**
 * @typedef {import("./candidates.js").Candidate} Candidate
 * @typedef {import("./candidates.js").Group} Group
 * @typedef {import("./candidates.js").Axis} Axis
 * @typedef {{ name: string, qOf: (group: Group) => number | null, axis: Axis | null, mean: number | null,
 *   best: number | null }} Scale one model's Q, or a share: `name` is "" where there is one only
 * @typedef {{ chosen?: string, taken?: string, tried?: Set<string>, pick?: string,
 *   second?: import("./episode.js").Second | null }} Marks
 */

const TRACKS = { B: "track b", prior: "track share", posterior: "track share" };

const LEGENDS = {
  prior: "share of the draws or of the likelihood",
  posterior: "share by Q and the prior",
};

/**
 * @param {Candidate[]} candidates
 * @param {Marks} [marks] texts of candidates; `pick` names the radio buttons by which one can be
 *   taken, `second` is a second model's Q
 */
export function barsOf(candidates, marks = {}) {
  const groups = groupsOf(candidates);
  const scales = scalesOf(groups, marks.second);
  const rows = groups.map((group) => {
    const { text } = group;
    const radio = marks.pick
      ? el("input", { type: "radio", name: marks.pick, value: text, checked: text === marks.chosen })
      : null;
    const row = el(marks.pick ? "label" : "div", { className: "row" }, radio, ...rowOf(group, scales, marks));
    return el("li", { className: text === marks.chosen ? "candidate chosen" : "candidate" }, row);
  });
  const legends = scales.filter(({ axis }) => axis).map(legendOf);
  return el("div", { className: "bars" }, el("ol", {}, ...rows), ...legends);
}

/**
 * "best 0.47 · mean 0.41 · gap 0.06", or that there is none.
 * @param {Candidate[]} candidates
 */
export function gapOf(candidates) {
  const groups = groupsOf(candidates);
  const summary = summaryOf(groups);
  if (!summary) return groups.length === 1 ? "one reply: no choice, so no Q" : "no Q was read";
  const { best, mean, gap } = summary;
  return `best ${written(best)} · mean ${written(mean)} · gap ${written(gap)}`;
}

/**
 * @param {Group[]} groups
 * @param {import("./episode.js").Second | null} [second]
 * @returns {Scale[]}
 */
function scalesOf(groups, second) {
  const weighed = groups.some(({ shares }) => shares);
  const first = scaleOf(second ? "A" : weighed ? "Q" : "", groups, ({ q }) => q);
  if (!second) return weighed ? [first, shareOf("prior"), shareOf("posterior")] : [first];
  const qs = new Map(second.qs);
  return [first, scaleOf("B", groups, ({ text }) => qs.get(text) ?? null)];
}

/**
 * The scale of a share of 1, which has no mean to mark.
 * @param {"prior" | "posterior"} name
 * @returns {Scale}
 */
function shareOf(name) {
  const axis = { low: 0, high: 1, origin: 0 };
  return { name, qOf: ({ shares }) => shares?.[name] ?? null, axis, mean: null, best: null };
}

/**
 * @param {string} name
 * @param {Group[]} groups
 * @param {(group: Group) => number | null} qOf
 * @returns {Scale}
 */
function scaleOf(name, groups, qOf) {
  const summary = summaryOf(groups.map((group) => ({ ...group, q: qOf(group) })));
  const qs = groups.map(qOf).filter((q) => q !== null);
  const axis = summary ? axisOf(qs) : null;
  return { name, qOf, axis, mean: summary?.mean ?? 0, best: summary?.best ?? null };
}

/**
 * @param {Group} group
 * @param {Scale[]} scales
 * @param {Marks} marks
 */
function rowOf(group, scales, marks) {
  const { thought, action } = splitReply(group.text);
  const preferred = scales[1] && scales[1].best !== null && scales[1].qOf(group) === scales[1].best;
  const said = [
    group.text === marks.chosen && "chosen",
    group.text === marks.taken && "taken",
    preferred && "best of B",
  ].filter(Boolean);
  const counts = [marks.tried?.has(group.text) && "tried", group.count > 1 && `× ${group.count}`, group.note];
  const pills = [
    ...said.map((textContent) => el("span", { className: "mark", textContent })),
    ...counts.filter(Boolean).map((textContent) => el("span", { className: "count", textContent })),
  ];
  return [
    el("span", { className: "what" }, el("code", { textContent: action }), ...pills),
    el("span", { className: "qs" }, ...scales.map((scale) => qOf(scale, group))),
    thought ? el("span", { className: "thought", textContent: thought }) : null,
    ...scales.filter(({ axis }) => axis).map((scale) => trackOf(scale.qOf(group), scale)),
  ];
}

/**
 * @param {Scale} scale
 * @param {Group} group
 */
function qOf(scale, group) {
  const value = el("span", { className: "q", textContent: written(scale.qOf(group)) });
  return scale.name ? el("span", { className: "named" }, `${scale.name} `, value) : value;
}

/**
 * @param {number | null} q
 * @param {Scale} scale with an axis
 */
function trackOf(q, { name, axis, mean }) {
  const track = el("span", { className: TRACKS[name] ?? "track", "aria-hidden": "true" });
  if (q !== null) {
    const [from, to] = [placeOn(axis.origin, axis), placeOn(q, axis)].sort((a, b) => a - b);
    const bar = el("span", { className: q < axis.origin ? "bar below" : "bar" });
    bar.style.left = percent(from);
    bar.style.width = percent(to - from);
    track.append(bar);
  }
  if (mean !== null) {
    const tick = el("span", { className: "mean" });
    tick.style.left = percent(placeOn(mean, axis));
    track.append(tick);
  }
  return track;
}

/** @param {Scale} scale with an axis */
function legendOf({ name, mean, axis: { low, high, origin } }) {
  const from = origin === 0 ? "bars from 0" : `bars from ${written(low)}, not from 0`;
  const legend =
    mean === null ? `${name}: ${LEGENDS[name]}` : `${name ? `${name}: ` : ""}raw Q · ${from} · tick: mean`;
  return el(
    "p",
    { className: "scale" },
    el("span", { textContent: written(low) }),
    el("span", { className: "legend", textContent: legend }),
    el("span", { textContent: written(high) }),
  );
}

/** @param {number} share */
function percent(share) {
  return `${(100 * share).toFixed(2)}%`;
}
