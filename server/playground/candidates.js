/**
 * What a set of candidates comes to. Pure.
 *
 * @typedef {{ text: string, q: number | null, count?: number, note?: string, shares?: Shares }} Candidate
 *   `count` is how often it was drawn, where that is known already
 * @typedef {{ prior: number, posterior: number } | null} Shares what the policy prefers, without Q
 *   and with it; null where Q alone chose
 * @typedef {{ text: string, q: number | null, count: number, note: string, shares: Shares }} Group
 *   equal candidates
 * @typedef {{ best: number, mean: number, gap: number }} Summary
 * @typedef {{ low: number, high: number, origin: number }} Axis `origin` is where bars begin
 */

/**
 * A reply's thought and action, where it is written as "Thought: … Action: …".
 * @param {string} text
 * @returns {{ thought: string, action: string }}
 */
export function splitReply(text) {
  const match = /^([\s\S]*?)^[ \t]*Action:[ \t]*(?=\S)([\s\S]+)$/m.exec(text);
  if (!match) return { thought: "", action: text.trim() };
  return { thought: match[1].replace(/^\s*Thought:\s*/, "").trim(), action: match[2].trim() };
}

/**
 * Equal candidates once, the highest Q first, those without Q last.
 * @param {Candidate[]} candidates
 * @returns {Group[]}
 */
export function groupsOf(candidates) {
  /** @type {Map<string, Group>} */
  const groups = new Map();
  for (const { text, q, count = 1, note = "", shares = null } of candidates) {
    const known = groups.get(text);
    if (known) known.count += count;
    else groups.set(text, { text, q, count, note, shares });
  }
  return [...groups.values()].sort((a, b) => (b.q ?? -Infinity) - (a.q ?? -Infinity) || 0);
}

/**
 * The best Q, and what one draw at random would have had; null where nothing has a Q.
 * @param {Group[]} groups
 * @returns {Summary | null}
 */
export function summaryOf(groups) {
  const read = groups.filter(({ q }) => q !== null);
  if (!read.length) return null;
  const draws = read.reduce((sum, { count }) => sum + count, 0);
  const mean = read.reduce((sum, { q, count }) => sum + q * count, 0) / draws;
  const best = Math.max(...read.map(({ q }) => q));
  return { best, mean, gap: best - mean };
}

/**
 * How far two models agree about the same candidates: on the best one, and on the order of pairs
 * that both tell apart. Null where one of them gave no Q.
 * @param {Candidate[]} candidates with the first model's Q
 * @param {Map<string, number | null>} second Q by text
 * @returns {{ sameBest: boolean, agreed: number, pairs: number } | null}
 */
export function agreementOf(candidates, second) {
  const both = groupsOf(candidates)
    .map(({ text, q }) => [q, second.get(text) ?? null])
    .filter(([a, b]) => a !== null && b !== null);
  if (!both.length) return null;
  const signs = both.flatMap(([a, b], index) =>
    both.slice(index + 1).map(([c, d]) => Math.sign(a - c) * Math.sign(b - d)),
  );
  const told = signs.filter((sign) => sign !== 0);
  const best = (which) => Math.max(...both.map((pair) => pair[which]));
  const sameBest = both.some(([a, b]) => a === best(0) && b === best(1));
  return { sameBest, agreed: told.filter((sign) => sign > 0).length, pairs: told.length };
}

/**
 * What a row of bars spans. It begins at 0 where 0 is as near as the values are to each other; else
 * a little below the lowest, because the bars would all look alike.
 * @param {number[]} values at least one
 * @returns {Axis}
 */
export function axisOf(values) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const span = high - low || Math.abs(high) || 1;
  if (low - span <= 0 && high + span >= 0) {
    const top = low === 0 && high === 0 ? 1 : Math.max(high, 0);
    return { low: Math.min(low, 0), high: top, origin: 0 };
  }
  const start = low - span / 4;
  return { low: start, high, origin: start };
}

/**
 * Where a value lies on an axis, from 0 to 1.
 * @param {number} value
 * @param {Axis} axis
 */
export function placeOn(value, { low, high }) {
  return high > low ? (value - low) / (high - low) : 0;
}

/**
 * @param {number | null} q
 * @param {number} [digits]
 */
export function written(q, digits = 4) {
  return q === null ? "no Q" : q.toFixed(digits).replace("-", "−");
}
